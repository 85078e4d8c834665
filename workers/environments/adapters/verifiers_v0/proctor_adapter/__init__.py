"""Serves a `verifiers` environment of the `load_environment()` kind on OpenEnv's wire. Added when it was imported."""
