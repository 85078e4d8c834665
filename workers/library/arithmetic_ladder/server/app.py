"""The server: `uvicorn server.app:app` from the package's folder."""

from openenv.core.env_server.http_server import create_app

from .arithmetic_ladder_environment import ArithmeticLadderEnvironment

try:
    from ..models import ArithmeticLadderAction, ArithmeticLadderObservation
except ImportError:  # run from the package's folder
    from models import ArithmeticLadderAction, ArithmeticLadderObservation

app = create_app(
    ArithmeticLadderEnvironment,
    ArithmeticLadderAction,
    ArithmeticLadderObservation,
    env_name="arithmetic_ladder",
    max_concurrent_envs=256,
)


def main() -> None:
    """Entry point of the installed package."""
    import uvicorn

    uvicorn.run(app, host="0.0.0.0", port=8000)


if __name__ == "__main__":
    main()
