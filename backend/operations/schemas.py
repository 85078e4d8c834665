"""Base classes of requests and responses. Free of the web, because workers use some of these models too."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema
from sqlalchemy.orm import Session

from backend.domain.described import Described
from backend.domain.tags import Tags


class Request(Described):
    """The input of an operation: the body of a POST or PUT, the query of a GET, the options of its command.

    A field's description is its help everywhere. Its title is the label of its form field.
    """

    model_config = ConfigDict(extra="forbid")


class FilterForm(BaseModel):
    """A filter that a form may send: empty choices count as absent."""

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        return {name: value for name, value in values.items() if not isinstance(value, str) or value.strip()}


ProjectText = Annotated[
    str | None, Field(max_length=60, description="Name or id of a project. Default: the one you work in, else all.")
]
"""Which project a list is of. `projects.queries.project_id_of` finds it."""


class ListRequest(Request):
    """A request for one page of a list. The client and the command line read the whole list."""

    after: str | None = Field(None, max_length=500, description="The `next` of the page before.")
    limit: int = Field(100, ge=1, le=500, description="Maximum number of items in this page.")

    command_limit: ClassVar[int | None] = None
    """Default of `--limit` on the command line. None: all items."""


class Response(Described):
    """The result of an operation."""

    model_config = ConfigDict(from_attributes=True)

    table_columns: ClassVar[tuple[str, ...]] = ()
    """Fields that the command line shows in a table. Empty: all."""
    table_empty: ClassVar[str] = ""
    """Text that the command line shows instead of an empty table."""

    @classmethod
    def of(cls, row: Any) -> Self:
        """Build it from a row or value with attributes of the same names."""
        return cls.model_validate(row)

    @classmethod
    def from_row(cls, row: Any, **values: Any) -> Self:
        """Build it from a row's attributes and the `values` that the row lacks or has in another form."""
        names = cls.model_fields.keys() - values.keys()
        return cls.model_validate({name: getattr(row, name) for name in names if hasattr(row, name)} | values)


class Progress(Response):
    """The result of an operation that continues after its response. Poll it until `is_finished`."""

    is_finished: bool
    is_successful: bool
    """Whether everything succeeded. Commands that waited exit with 1 otherwise."""
    done: int = 0
    total: int | None = None
    """Null until it is known."""
    message: str = ""
    """The current state in a few words, or what went wrong."""


@dataclass(frozen=True, slots=True)
class Cli:
    """How the command line spells a field of a request: `Annotated[str, Cli(argument=True)]`."""

    argument: bool = False
    """A positional argument instead of an option."""
    option: str = ""
    """Default: the field's name."""
    aliases: tuple[str, ...] = ()
    """Old spellings, which work for one release."""
    envvar: str = ""
    """Environment variable that gives the value, for secrets."""
    reads_file: bool = False
    """`@FILE` reads the value from a file."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(schema) | {"x-cli": {name: value for name, value in asdict(self).items() if value}}


@dataclass(frozen=True, slots=True)
class Download:
    """The result of an operation that returns a file. Errors are raised before the file is sent.

    `content` gets a separate transaction, because the request's has ended when the file is sent.
    """

    name: str
    media_type: str
    content: Callable[[Session], Iterator[bytes]]


class UpdateLabels(Request):
    """Changes of an item's tags, note and pin. Default for every field: unchanged."""

    emptied_by_forms: ClassVar[frozenset[str]] = frozenset({"note", "tags"})

    note: str | None = Field(None, max_length=5000, description="Text about it. Empty: none.")
    tags: Annotated[Tags, Cli(option="--tag")] | None = Field(
        None, description="All tags, at most 20 with 64 characters each. They replace the ones before."
    )
    is_pinned: Annotated[bool | None, Cli(option="--pinned")] = Field(
        None, description="Whether it is pinned to the top of its list, for everyone."
    )

    def apply_to(self, row: object) -> None:
        """Change the attributes of a row that were sent."""
        for name, value in self.model_dump(exclude_none=True).items():
            setattr(row, name, value)


class Labels(Response):
    """Tags, note and pin of an item."""

    tags: list[str]
    note: str
    is_pinned: bool
