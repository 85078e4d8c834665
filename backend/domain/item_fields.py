"""The fields of listed items, such as runs: columns, filters and sort orders of their list derive from them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from backend.domain.rollouts.fields import Field

MAX_COLUMNS = 30


@dataclass(frozen=True)
class ItemFields:
    """The fields of one kind of item."""

    declared: Mapping[str, Field]
    default_columns: tuple[str, ...]
    """The first one names the item and is always shown."""
    find_more: Callable[[str], Field | None] = lambda _: None
    """Finds fields that are not declared, such as metrics."""

    @cached_property
    def filterable(self) -> Mapping[str, Field]:
        return {name: field for name, field in self.declared.items() if field.is_filterable}

    def find(self, name: str) -> Field | None:
        return self.declared.get(name) or self.find_more(name)

    def columns_of(self, names: Iterable[str]) -> tuple[list[Field], list[str]]:
        """Return the columns of these names, the item's name first, and the names that are no column."""
        wanted = [name.strip() for name in names if name.strip()]
        chosen = [self.default_columns[0], *wanted] if wanted else self.default_columns
        fields = {name: self.find(name) for name in dict.fromkeys(chosen)}
        shown = [field for field in fields.values() if field and field.is_column]
        unknown = [name for name, field in fields.items() if field is None or not field.is_column]
        return shown[:MAX_COLUMNS], unknown
