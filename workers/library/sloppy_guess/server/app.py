"""The server: `uvicorn server.app:app` from the package's folder."""

from openenv.core.env_server.http_server import create_app

from .sloppy_guess_environment import SloppyGuessEnvironment

try:
    from ..models import SloppyGuessAction, SloppyGuessObservation
except ImportError:  # run from the package's folder
    from models import SloppyGuessAction, SloppyGuessObservation

app = create_app(
    SloppyGuessEnvironment,
    SloppyGuessAction,
    SloppyGuessObservation,
    env_name="sloppy_guess",
    max_concurrent_envs=256,
)


def main() -> None:
    """Entry point of the installed package."""
    import uvicorn

    uvicorn.run(app, host="0.0.0.0", port=8000)


if __name__ == "__main__":
    main()
