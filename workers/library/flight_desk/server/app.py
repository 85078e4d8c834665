"""The server: `uvicorn server.app:app` from the package's folder."""

from openenv.core.env_server.http_server import create_app

from .flight_desk_environment import FlightDeskEnvironment

try:
    from ..models import FlightDeskAction, FlightDeskObservation
except ImportError:  # run from the package's folder
    from models import FlightDeskAction, FlightDeskObservation

app = create_app(
    FlightDeskEnvironment,
    FlightDeskAction,
    FlightDeskObservation,
    env_name="flight_desk",
    max_concurrent_envs=256,
)


def main() -> None:
    """Entry point of the installed package."""
    import uvicorn

    uvicorn.run(app, host="0.0.0.0", port=8000)


if __name__ == "__main__":
    main()
