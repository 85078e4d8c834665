"""The server: `uvicorn server.app:app` from the package's folder."""

from openenv.core.env_server.http_server import create_app

from .number_guess_environment import NumberGuessEnvironment

try:
    from ..models import NumberGuessAction, NumberGuessObservation
except ImportError:  # run from the package's folder
    from models import NumberGuessAction, NumberGuessObservation

app = create_app(
    NumberGuessEnvironment,
    NumberGuessAction,
    NumberGuessObservation,
    env_name="number_guess",
    max_concurrent_envs=256,
)


def main() -> None:
    """Entry point of the installed package."""
    import uvicorn

    uvicorn.run(app, host="0.0.0.0", port=8000)


if __name__ == "__main__":
    main()
