"""The server: `uvicorn server.app:app` from the package's folder."""

from openenv.core.env_server.http_server import create_app

from .reverse_text_environment import ReverseTextEnvironment

try:
    from ..models import ReverseTextAction, ReverseTextObservation
except ImportError:  # run from the package's folder
    from models import ReverseTextAction, ReverseTextObservation

app = create_app(
    ReverseTextEnvironment,
    ReverseTextAction,
    ReverseTextObservation,
    env_name="reverse_text",
    max_concurrent_envs=256,
)


def main() -> None:
    """Entry point of the installed package."""
    import uvicorn

    uvicorn.run(app, host="0.0.0.0", port=8000)


if __name__ == "__main__":
    main()
