"""The server: `uvicorn server.app:app` from the package's folder."""

from openenv.core.env_server.http_server import create_app

from .faster_code_environment import FasterCodeEnvironment

try:
    from ..models import FasterCodeAction, FasterCodeObservation
except ImportError:  # run from the package's folder
    from models import FasterCodeAction, FasterCodeObservation

app = create_app(
    FasterCodeEnvironment,
    FasterCodeAction,
    FasterCodeObservation,
    env_name="faster_code",
    max_concurrent_envs=256,
)


def main() -> None:
    """Entry point of the installed package."""
    import uvicorn

    uvicorn.run(app, host="0.0.0.0", port=8000)


if __name__ == "__main__":
    main()
