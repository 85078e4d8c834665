"""What goes over the wire: one action and one observation."""

from openenv.core.env_server.types import Action, Observation
from pydantic import Field


class ProgramProbeAction(Action):
    """A program and the inputs to run it on."""

    source: str = Field(description="Python source")
    function: str = Field(default="", description="The function to call; empty for a program that reads stdin")
    inputs: list[str] = Field(description="Lists of arguments as Python literals, or texts for stdin")


class ProgramProbeObservation(Observation):
    """The answers of the program, in the order of the inputs."""

    answers: list[list[str]] = Field(default=[], description="Outcome and text for each input")
    problem: str = Field(default="", description="Why nothing was run")
