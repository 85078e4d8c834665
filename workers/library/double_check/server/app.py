"""The server: `uvicorn server.app:app` from the package's folder."""

from openenv.core.env_server.http_server import create_app

from .double_check_environment import DoubleCheckEnvironment

try:
    from ..models import DoubleCheckAction, DoubleCheckObservation
except ImportError:  # run from the package's folder
    from models import DoubleCheckAction, DoubleCheckObservation

app = create_app(
    DoubleCheckEnvironment,
    DoubleCheckAction,
    DoubleCheckObservation,
    env_name="double_check",
    max_concurrent_envs=256,
)


def main() -> None:
    """Entry point of the installed package."""
    import uvicorn

    uvicorn.run(app, host="0.0.0.0", port=8000)


if __name__ == "__main__":
    main()
