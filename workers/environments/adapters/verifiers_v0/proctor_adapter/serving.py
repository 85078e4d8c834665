"""OpenEnv's own server."""

from openenv.core.env_server import Action as WireAction
from openenv.core.env_server import Environment as WireEnvironment
from openenv.core.env_server import Observation as WireObservation
from openenv.core.env_server import State as WireState
from openenv.core.env_server import create_app

__all__ = ["WireAction", "WireEnvironment", "WireObservation", "WireState", "create_app"]
