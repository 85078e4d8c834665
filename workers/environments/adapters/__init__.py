"""Adapters that serve environments of other libraries on OpenEnv's wire: files that an imported package carries."""
