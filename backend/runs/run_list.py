"""The list of runs, with its filter, columns, order and saved views."""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from backend.domain.runs.fields import FILTER_FIELDS, RUN_FIELDS, columns_of
from backend.errors import InvalidInput
from backend.rollouts import saved_views
from backend.rollouts.schemas import FieldResponse
from backend.rollouts.tables import Listing
from backend.runs import queries
from backend.runs.fields import sort_keys
from backend.runs.schemas import RunListQuery
from backend.web.filters import WrongFilter
from backend.web.identity import Actor
from backend.web.paging import Slice

_FIELDS = [FieldResponse.of(field).model_dump(mode="json") for field in FILTER_FIELDS.values()]
_CHOICES = [field for field in RUN_FIELDS.values() if field.is_column and field.name != "name"]


def run_list(session: Session, actor: Actor, wanted: RunListQuery, show: Sequence[str]) -> dict[str, object]:
    """Read the list. Mistakes in the filter, the order and the columns are shown next to it."""
    columns, unknown = columns_of(show or (wanted.columns or "").split(","))
    if show:
        wanted = wanted.model_copy(update={"columns": ",".join(field.name for field in columns)})
    mistakes = [f"There is no column `{name[:60]}`. The list is shown without it." for name in unknown[:5]]
    try:
        sort_keys(wanted.sort)
    except InvalidInput as error:
        mistakes.append(f"{' '.join(error.fields.values())} The newest runs are shown first.")
        wanted = wanted.model_copy(update={"sort": RunListQuery().sort, "after": None})
    found: Slice[queries.ListedRun] = Slice([], None)
    place = slice(0)
    unused = () if len(actor.access.names) > 1 else ("project",)  # one project is never mentioned
    try:
        found = queries.list_runs(session, wanted, columns, actor.project_id)
    except WrongFilter as error:
        mistakes.append(error.message)
        place = error.place
    return {
        "listed": found.items,
        "next": found.next,
        "wanted": wanted,
        "columns": columns,
        "all_columns": [
            *(each for each in _CHOICES if each.name not in unused),
            *(field for field in columns if field.name not in RUN_FIELDS),
        ],
        "fields": [each for each in _FIELDS if each["name"] not in unused],  # for completion in the filter box
        "views": saved_views.list_views(session, actor, Listing.RUNS),
        "mistakes": mistakes,
        "place": place,
    }
