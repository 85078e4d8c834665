"""What goes over the wire: one action and one observation."""

from openenv.core.env_server.types import Action, Observation
from pydantic import Field


class PythonFunctionsAction(Action):
    """A program with the function."""

    code: str = Field(description="Python source that defines the function at its top level")


class PythonFunctionsObservation(Observation):
    """What to write, and afterwards how many hidden tests passed."""

    question: str = Field(default="", description="The requested function, with examples")
    message: str = Field(default="", description="The result, once there is one")
