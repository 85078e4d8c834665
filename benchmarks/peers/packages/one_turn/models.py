"""What goes over the wire."""

from openenv.core.env_server.types import Action, Observation


class OneTurnAction(Action):
    """The answer."""

    text: str


class OneTurnObservation(Observation):
    """The question."""

    text: str = ""
