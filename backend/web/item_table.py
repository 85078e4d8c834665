"""The fields of listed items as SQL: values of columns, conditions of filters, and sort keys.

Free of the web framework, because jobs read lists.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Double, Select, Text, case, cast, func, literal, select
from sqlalchemy.orm import Session

from backend.core.tables import Labelled
from backend.domain.item_fields import ItemFields
from backend.domain.rollouts.fields import Field, FieldKind
from backend.domain.rollouts.filters import Value
from backend.errors import InvalidInput
from backend.web.filters import (
    TOLERANCE,
    Condition,
    compare_date,
    compare_number,
    compare_word,
    join_conditions,
    parse_filter,
)
from backend.web.paging import Column, Key, Slice, rows_of

T = TypeVar("T")
_LAST_WORD = "\U0010ffff"
"""Sorts after every stored word."""


def json_number(column: Any, *path: str) -> ColumnElement[float]:
    """The number at a path of a JSON column; null if there is none or something else."""
    value = column[path]
    return case((func.jsonb_typeof(value) == "number", cast(value.astext, Double)))


@dataclass(frozen=True, slots=True)
class ListedItem(Generic[T]):
    """An item in a list, with the values of the fields that the list shows and the item does not have."""

    item: T
    values: Mapping[str, object]


@dataclass(frozen=True)
class ItemTable:
    """Reads the items of one kind. Statements must join what the values need."""

    fields: ItemFields
    item: type[Labelled]
    key: Column
    """The unique key."""
    values: Mapping[str, ColumnElement[Any]]
    """The value of each field that has one, null where an item has none."""
    drawn: frozenset[str] = frozenset()
    """Columns that templates draw from the item itself."""
    always: frozenset[str] = frozenset({"name", "created"})
    """Fields that every item has. They sort as they are stored, by an index where there is one."""
    value_of_more: Callable[[Field], ColumnElement[Any]] | None = None
    """The value of a field that `fields` does not declare."""

    def value_of(self, field: Field) -> ColumnElement[Any]:
        if self.value_of_more is not None and field.name not in self.fields.declared:
            return self.value_of_more(field)
        return self.values[field.name]

    def condition_of(self, expression: str | None) -> Condition | None:
        """Return the condition of a filter, or None if it is empty. Raises WrongFilter."""
        tree = parse_filter(expression, self.fields.filterable)
        return join_conditions(tree, self._compare) if tree else None

    def select_where(self, statement: Select[T], where: str | None, tag: str | None) -> Select[T]:
        """Keep the items that pass a filter and have a tag. Default: all. Raises WrongFilter."""
        if tag:
            statement = statement.where(self.item.tags.contains([tag]))
        condition = self.condition_of(where)
        return statement if condition is None else statement.where(condition)

    def sort_keys(self, sort: str) -> tuple[Key, Key]:
        """Return the keys of a sort order such as `-reward`: items without a value come last. Raises InvalidInput."""
        name, is_descending = sort.removeprefix("-"), sort.startswith("-")
        field = self.fields.find(name)
        if field is None or not field.is_sortable:
            possible = ", ".join(each.name for each in self.fields.filterable.values() if each.is_sortable)
            raise InvalidInput(
                fields={
                    "sort": f"`{name[:60]}` is no field to sort by. Possible: {possible}. `-` in front: descending."
                }
            )
        value = self.value_of(field)
        if field.kind is FieldKind.NUMBER:
            value = func.coalesce(value, cast(literal("-infinity" if is_descending else "infinity"), Double))
        elif name in self.always:
            pass
        elif field.kind is FieldKind.DATE:
            value = func.coalesce(value, func.to_timestamp(literal(0 if is_descending else 9_999_999_999)))
        elif field.kind in (FieldKind.WORD, FieldKind.CHOICE):
            value = func.coalesce(value, literal("" if is_descending else _LAST_WORD, Text))
        return Key(value, is_descending), Key(self.key, is_descending)

    def read(
        self,
        session: Session,
        statement: Select[T],
        columns: Sequence[Field],
        *,
        sort: str,
        after: str | None,
        limit: int,
    ) -> Slice[ListedItem[T]]:
        """Return a page of items, pinned ones first, with the values of these columns."""
        valued = [field for field in columns if field.name not in self.drawn]
        labelled = [self.value_of(field).label(f"value_{place}") for place, field in enumerate(valued)]
        keys = (Key(self.item.is_pinned), *self.sort_keys(sort))
        found = rows_of(session, statement.add_columns(*labelled), keys, after=after, limit=limit)
        names = [field.name for field in valued]
        items = [ListedItem(row[0], dict(zip(names, row[1:], strict=False))) for row in found.items]
        return Slice(items, found.next)

    def _compare(self, field: Field, operator: str, values: Sequence[Value]) -> Condition:
        given = tuple(values)
        if field.name == "tag":
            tag = func.unnest(self.item.tags).table_valued("tag").alias("tag")
            match operator:
                case "has":
                    return func.cardinality(self.item.tags) > 0
                case "~":
                    return select(literal(1)).select_from(tag).where(compare_word(tag.c.tag, "~", given)).exists()
                case _:
                    overlaps: Condition = self.item.tags.overlap(list(given))
                    return overlaps
        value = self.value_of(field)
        match field.kind:
            case FieldKind.YES_NO:
                return value.is_(bool(given[0]))
            case FieldKind.NUMBER:
                return compare_number(value, operator, given, tolerance=0 if field.is_whole else TOLERANCE)
            case FieldKind.DATE:
                return compare_date(value, operator, given)
            case _:
                return compare_word(value, operator, given)
