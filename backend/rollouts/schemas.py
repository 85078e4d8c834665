"""Requests and responses of rollouts and saved views."""

from backend.domain.rollouts.fields import OPERATORS, Field
from backend.operations.schemas import Response


class FieldResponse(Response):
    """A field that filters can use."""

    name: str
    kind: str
    help: str
    choices: list[str]
    operators: list[str]

    @classmethod
    def of_field(cls, field: Field) -> "FieldResponse":
        return cls(
            name=field.name,
            kind=field.kind,
            help=field.help,
            choices=list(field.choices),
            operators=list(OPERATORS[field.kind]),
        )
