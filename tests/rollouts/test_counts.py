"""The number of rollouts of a growing run that pass a filter is counted once, and again when it may have changed."""

from collections.abc import Callable

import pytest
from sqlalchemy.orm import Session

from backend.rollouts.queries import list_rollouts, total_of
from backend.rollouts.scope import scope_of
from backend.rollouts.tables import Group, Rollout
from backend.runs.schemas import RolloutFilter
from backend.runs.tables import Run
from tests.factories import add_rollout, make_flag, make_group, make_run
from tests.statements import statements_of


@pytest.fixture
def run(session: Session) -> Run:
    return make_run(session, ended_at=None)


@pytest.fixture
def group(session: Session, run: Run) -> Group:
    return make_group(session, run)


def add(session: Session, run: Run, group: Group, member: int, win: float) -> Rollout:
    rollout = add_rollout(session, run, group, [win, 1.0, 0.0], member, {})
    session.flush()
    return rollout


def counted(session: Session, run: Run, where: str) -> int:
    matching = list_rollouts(session, run, RolloutFilter(where=where), scope_of(session, run), counts=True).matching
    assert matching is not None
    return matching.count


def statements(session: Session, work: Callable[[], object]) -> list[str]:
    with statements_of(session) as sent:
        work()
    return sent


def test_the_same_filter_is_counted_once(session: Session, run: Run, group: Group) -> None:
    add(session, run, group, 0, 1.0)
    first = statements(session, lambda: counted(session, run, "win = 1"))
    again = statements(session, lambda: counted(session, run, "win = 1"))
    assert sum("count(*)" in statement for statement in first) == 1
    assert not any("count(*)" in statement for statement in again)


def test_a_new_rollout_is_counted(session: Session, run: Run, group: Group) -> None:
    add(session, run, group, 0, 1.0)
    assert (counted(session, run, "win = 1"), total_of(session, scope_of(session, run))) == (1, 1)
    add(session, run, group, 1, 1.0)
    assert (counted(session, run, "win = 1"), total_of(session, scope_of(session, run))) == (2, 2)


def test_what_is_said_later_of_a_stored_rollout_is_counted(session: Session, run: Run, group: Group) -> None:
    rollout = add(session, run, group, 0, 1.0)
    assert counted(session, run, "not has flag") == 1
    make_flag(session, run, rollout)
    session.flush()
    assert counted(session, run, "not has flag") == 0
    assert counted(session, run, "demonstration or has verdict") == 0
    rollout.is_demonstration = True
    session.flush()
    assert counted(session, run, "demonstration or has verdict") == 1
