"""The server: `uvicorn server.app:app` from the package's folder."""

from openenv.core.env_server.http_server import create_app

from .python_functions_environment import PythonFunctionsEnvironment

try:
    from ..models import PythonFunctionsAction, PythonFunctionsObservation
except ImportError:  # run from the package's folder
    from models import PythonFunctionsAction, PythonFunctionsObservation

app = create_app(
    PythonFunctionsEnvironment,
    PythonFunctionsAction,
    PythonFunctionsObservation,
    env_name="python_functions",
    max_concurrent_envs=256,
)


def main() -> None:
    """Entry point of the installed package."""
    import uvicorn

    uvicorn.run(app, host="0.0.0.0", port=8000)


if __name__ == "__main__":
    main()
