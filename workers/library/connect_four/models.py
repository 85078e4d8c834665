"""What goes over the wire: one action and one observation."""

from openenv.core.env_server.types import Action, Observation
from pydantic import Field


class ConnectFourAction(Action):
    """X into one column."""

    column: int = Field(
        description="Number of the column, 1 to 7 from the left",
        # Described, not enforced: a full column is an invalid move, not a broken message.
        json_schema_extra={"minimum": 1, "maximum": 7},
    )


class ConnectFourObservation(Observation):
    """The result of the last move and the board."""

    message: str = Field(default="", description="What happened: the opponent's reply or the result")
    board: str = Field(default="", description="Six rows of seven cells, and the columns' numbers below")
    legal_moves: list[int] = Field(default_factory=list, description="Numbers of the columns that are not full")
