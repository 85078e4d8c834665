"""The server: `uvicorn server.app:app` from the package's folder."""

from openenv.core.env_server.http_server import create_app

from .handbook_search_environment import HandbookSearchEnvironment

try:
    from ..models import HandbookSearchAction, HandbookSearchObservation
except ImportError:  # run from the package's folder
    from models import HandbookSearchAction, HandbookSearchObservation

app = create_app(
    HandbookSearchEnvironment,
    HandbookSearchAction,
    HandbookSearchObservation,
    env_name="handbook_search",
    max_concurrent_envs=256,
)


def main() -> None:
    """Entry point of the installed package."""
    import uvicorn

    uvicorn.run(app, host="0.0.0.0", port=8000)


if __name__ == "__main__":
    main()
