"""The server: `uvicorn server.app:app` from the package's folder."""

from openenv.core.env_server.http_server import create_app

from .__NAME___environment import __CLASS__Environment

try:
    from ..models import __CLASS__Action, __CLASS__Observation
except ImportError:  # run from the package's folder
    from models import __CLASS__Action, __CLASS__Observation

app = create_app(
    __CLASS__Environment,
    __CLASS__Action,
    __CLASS__Observation,
    env_name="__NAME__",
    max_concurrent_envs=256,
)


def main() -> None:
    """Entry point of the installed package."""
    import uvicorn

    uvicorn.run(app, host="0.0.0.0", port=8000)


if __name__ == "__main__":
    main()
