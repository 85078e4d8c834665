"""Base classes of requests and responses. Free of the web, because workers use some of these models too."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Self
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema
from sqlalchemy.orm import Session

from backend.domain.described import Described
from backend.domain.rollouts.filters import MAX_LENGTH, OR
from backend.domain.tags import MAX_TAG, Tags
from backend.domain.text import quoted


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


class ListFilter(FilterForm, Described):
    """Filter of a list, in its address."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    after: str | None = None
    """The `next` of the previous page."""
    limit: int = Field(default=50, ge=1, le=500)

    def query(self, **changes: object) -> str:
        """Return the query string of the first page with some changes. None and False remove a value."""
        return urlencode(self.given(**changes))

    def given(self, **changes: object) -> dict[str, object]:
        """Return the values of the first page's address with some changes."""
        values = self.model_dump(mode="json", exclude_defaults=True, exclude={"after", "before"}) | changes
        return {name: value for name, value in values.items() if value not in (None, False, "")}


class ItemFilter(ListFilter):
    """Filter and order of a list of items that people label."""

    tag: str | None = Field(default=None, max_length=MAX_TAG)
    """A tag of the item."""
    where: str | None = Field(default=None, max_length=MAX_LENGTH)
    """A filter: `status = failed and tag = paper and reward > 0.5`. It is added to the other parameters."""

    @property
    def expression(self) -> str:
        """The parameters that filters can express, as one filter."""
        return self.with_where([f"tag = {quoted(self.tag)}"] if self.tag else [])

    def with_where(self, parts: list[str]) -> str:
        where = [f"({self.where})" if OR.search(self.where) and parts else self.where] if self.where else []
        return " and ".join(parts + where)


class ItemListQuery(ItemFilter):
    """The address of a list of items."""

    sort: str = Field(default="-created", max_length=130)
    """A field. Descending: `-created`."""
    columns: str | None = Field(default=None, max_length=1000)
    """Columns to show, separated by commas."""


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
