"""The server: `uvicorn server.app:app` from the package's folder."""

from openenv.core.env_server.http_server import create_app

from .support_triage_environment import SupportTriageEnvironment

try:
    from ..models import SupportTriageAction, SupportTriageObservation
except ImportError:  # run from the package's folder
    from models import SupportTriageAction, SupportTriageObservation

app = create_app(
    SupportTriageEnvironment,
    SupportTriageAction,
    SupportTriageObservation,
    env_name="support_triage",
    max_concurrent_envs=256,
)


def main() -> None:
    """Entry point of the installed package."""
    import uvicorn

    uvicorn.run(app, host="0.0.0.0", port=8000)


if __name__ == "__main__":
    main()
