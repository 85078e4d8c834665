"""What goes over the wire."""

from openenv.core.env_server.types import Action, Observation


class FiveTurnsAction(Action):
    """A move."""

    move: str


class FiveTurnsObservation(Observation):
    """What the game says."""

    text: str = ""
