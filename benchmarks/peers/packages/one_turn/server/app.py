"""The server."""

from models import OneTurnAction, OneTurnObservation
from openenv.core.env_server.http_server import create_app

from .one_turn_environment import OneTurnEnvironment

app = create_app(OneTurnEnvironment, OneTurnAction, OneTurnObservation, env_name="one_turn", max_concurrent_envs=256)
