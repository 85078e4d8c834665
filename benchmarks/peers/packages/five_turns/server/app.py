"""The server."""

from models import FiveTurnsAction, FiveTurnsObservation
from openenv.core.env_server.http_server import create_app

from .five_turns_environment import FiveTurnsEnvironment

app = create_app(
    FiveTurnsEnvironment, FiveTurnsAction, FiveTurnsObservation, env_name="five_turns", max_concurrent_envs=256
)
