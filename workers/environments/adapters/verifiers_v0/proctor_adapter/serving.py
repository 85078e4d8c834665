"""OpenEnv's own server."""

from openenv.core.env_server import Action, Environment, Observation, State, create_app

__all__ = ["Action", "Environment", "Observation", "State", "create_app"]
