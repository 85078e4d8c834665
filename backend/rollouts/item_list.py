"""Lists of items with a filter, columns, an order and saved views: of runs, environments and checkpoints."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from sqlalchemy.orm import Session

from backend.domain.rollouts.fields import Field
from backend.errors import InvalidInput
from backend.operations.schemas import ItemListQuery
from backend.rollouts import saved_views
from backend.rollouts.schemas import FieldResponse
from backend.rollouts.tables import Listing
from backend.web.filters import WrongFilter
from backend.web.identity import Actor
from backend.web.item_table import ItemTable, ListedItem
from backend.web.paging import Slice

Q = TypeVar("Q", bound=ItemListQuery)
T = TypeVar("T")


def item_list(
    session: Session,
    actor: Actor,
    table: ItemTable,
    listing: Listing,
    wanted: Q,
    show: Sequence[str],
    read: Callable[[Q, Sequence[Field]], Slice[ListedItem[T]]],
) -> dict[str, object]:
    """Read a list for its page. Mistakes in the filter, the order and the columns are shown next to it."""
    known = table.fields
    columns, unknown = known.columns_of(show or (wanted.columns or "").split(","))
    if show:
        wanted = wanted.model_copy(update={"columns": ",".join(field.name for field in columns)})
    mistakes = [f"There is no column `{name[:60]}`. The list is shown without it." for name in unknown[:5]]
    try:
        table.sort_keys(wanted.sort)
    except InvalidInput as error:
        usual = type(wanted)().sort
        mistakes.append(f"{' '.join(error.fields.values())} The list is sorted by `{usual}`.")
        wanted = wanted.model_copy(update={"sort": usual, "after": None})
    found: Slice[ListedItem[T]] = Slice([], None)
    place = slice(0)
    try:
        found = read(wanted, columns)
    except WrongFilter as error:
        mistakes.append(error.message)
        place = error.place
    hidden = () if len(actor.access.names) > 1 else ("project",)  # one project is never mentioned
    always = known.default_columns[0]
    choices = [field for field in known.declared.values() if field.is_column and field.name not in (always, *hidden)]
    usable = [field for field in known.filterable.values() if field.name not in hidden]
    return {
        "listed": found.items,
        "next": found.next,
        "wanted": wanted,
        "columns": columns,
        "all_columns": [*choices, *(field for field in columns if field.name not in known.declared)],
        # for completion in the filter box
        "fields": [FieldResponse.of(field).model_dump(mode="json") for field in usable],
        "views": saved_views.list_views(session, actor, listing),
        "mistakes": mistakes,
        "place": place,
    }
