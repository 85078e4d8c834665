"""A field that is declared once works everywhere: storing, filters, orders, table columns, exports and imports."""

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy.orm import Session

from backend.domain.rollouts.fields import FIELDS, MEASURED
from backend.domain.rollouts.record import RolloutRecord, rollout_of
from backend.domain.rollouts.rollout import TaskSpec
from backend.domain.vocabulary import Split
from backend.rollouts.export import facts_of, records
from backend.rollouts.formats import native
from backend.rollouts.queries import list_rollouts
from backend.rollouts.schemas import RolloutResponse
from backend.rollouts.scope import scope_of
from backend.rollouts.tables import Rollout
from backend.runs.schemas import RolloutFilter
from backend.runs.tables import Run
from tests.factories import add_rollout, make_group, make_run
from workers.storage.rollouts import COLUMNS, row_of


@pytest.fixture
def run(session: Session) -> Run:
    return make_run(session, ended_at=datetime.now(UTC))


def test_every_stored_field_is_a_column_of_the_table() -> None:
    stored = {name for field in FIELDS.values() for name in field.stored}
    assert stored <= set(Rollout.__table__.columns.keys())


@pytest.mark.parametrize("name", MEASURED)
def test_a_measurement_is_stored_filtered_sorted_shown_exported_and_imported(
    session: Session, run: Run, name: str
) -> None:
    field = MEASURED[name]
    group = make_group(session, run)
    made = [add_rollout(session, run, group, [1.0, 1.0, 0.0], member, {}) for member in range(3)]
    for value, rollout in zip((7, 3, 5), made, strict=True):
        setattr(rollout, name, value)
    session.flush()

    found = list_rollouts(session, run, RolloutFilter(where=f"{field.name} > 3", sort=f"-{field.name}")).items
    assert [item.value(field) for item in found] == [7, 5]
    assert field in scope_of(session, run).columns
    assert name in RolloutResponse.model_fields

    facts = facts_of(session, run)
    exported: list[dict[str, Any]] = list(records(session, run, facts))
    assert [record[name] for record in exported] == [7, 3, 5]
    assert [getattr(native.read_table_row(native.table_row(record)), name) for record in exported] == [7, 3, 5]

    task = TaskSpec(Split.HELDOUT, 0, 0, 0)
    imported = rollout_of(RolloutRecord.model_validate(exported[0]), task, group=0, member=0)
    assert dict(zip(COLUMNS, row_of(run.id, imported, run.columns), strict=True))[name] == 7
