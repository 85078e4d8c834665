"""The server: `uvicorn server.app:app` from the package's folder."""

from openenv.core.env_server.http_server import create_app

from .connect_four_environment import ConnectFourEnvironment

try:
    from ..models import ConnectFourAction, ConnectFourObservation
except ImportError:  # run from the package's folder
    from models import ConnectFourAction, ConnectFourObservation

app = create_app(
    ConnectFourEnvironment,
    ConnectFourAction,
    ConnectFourObservation,
    env_name="connect_four",
    max_concurrent_envs=256,
)


def main() -> None:
    """Entry point of the installed package."""
    import uvicorn

    uvicorn.run(app, host="0.0.0.0", port=8000)


if __name__ == "__main__":
    main()
