"""What goes over the wire: one action and one observation."""

from openenv.core.env_server.types import Action, Observation
from pydantic import Field


class TictactoeDuelAction(Action):
    """The mark of the seat whose turn it is, into one cell."""

    cell: int = Field(
        description="Number of the cell, 1 to 9, row by row",
        # Described, not enforced: a cell off the board is an invalid move, not a broken message.
        json_schema_extra={"minimum": 1, "maximum": 9},
    )


class TictactoeDuelObservation(Observation):
    """The result of the last move, for the seat whose turn it is."""

    seat: str = Field(default="", description="The seat whose turn it is, `x` or `o`; empty at the end")
    message: str = Field(default="", description="What happened since the seat's last turn")
    board: str = Field(default="", description="The board as three lines; free cells show their number")
    legal_moves: list[int] = Field(default_factory=list, description="Numbers of the free cells")
