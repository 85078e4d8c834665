"""The server: `uvicorn server.app:app` from the package's folder."""

from openenv.core.env_server.http_server import create_app

from .silver_words_environment import SilverWordsEnvironment

try:
    from ..models import SilverWordsAction, SilverWordsObservation
except ImportError:  # run from the package's folder
    from models import SilverWordsAction, SilverWordsObservation

app = create_app(
    SilverWordsEnvironment,
    SilverWordsAction,
    SilverWordsObservation,
    env_name="silver_words",
    max_concurrent_envs=256,
)


def main() -> None:
    """Entry point of the installed package."""
    import uvicorn

    uvicorn.run(app, host="0.0.0.0", port=8000)


if __name__ == "__main__":
    main()
