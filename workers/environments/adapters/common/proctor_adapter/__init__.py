"""Serves an environment of the library `verifiers` on OpenEnv's wire. Added when it was imported."""
