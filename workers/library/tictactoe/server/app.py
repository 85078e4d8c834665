"""The server: `uvicorn server.app:app` from the package's folder."""

from openenv.core.env_server.http_server import create_app

from .tictactoe_environment import TictactoeEnvironment

try:
    from ..models import TictactoeAction, TictactoeObservation
except ImportError:  # run from the package's folder
    from models import TictactoeAction, TictactoeObservation

app = create_app(
    TictactoeEnvironment,
    TictactoeAction,
    TictactoeObservation,
    env_name="tictactoe",
    max_concurrent_envs=256,
)


def main() -> None:
    """Entry point of the installed package."""
    import uvicorn

    uvicorn.run(app, host="0.0.0.0", port=8000)


if __name__ == "__main__":
    main()
