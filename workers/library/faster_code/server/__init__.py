"""The environment's server."""
