"""Python functions as an OpenEnv environment."""

from .client import PythonFunctionsEnv
from .models import PythonFunctionsAction, PythonFunctionsObservation

__all__ = ["PythonFunctionsAction", "PythonFunctionsEnv", "PythonFunctionsObservation"]
