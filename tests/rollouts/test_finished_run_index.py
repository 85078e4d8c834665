"""Lists of an ended run are read once, and again when their answer may have changed."""

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

import numpy as np
import pytest
from sqlalchemy.orm import Session

from backend.domain.graders.settings import GraderKind
from backend.domain.vocabulary import GradeStatus, Verdict
from backend.graders.tables import Grade, Grader
from backend.review.tables import VerdictRecord
from backend.rollouts.finished_run_index import LruCache
from backend.rollouts.queries import list_rollouts, neighbors
from backend.rollouts.scope import scope_of
from backend.rollouts.tables import Group, Rollout
from backend.runs.schemas import RolloutFilter
from backend.runs.tables import Run
from tests.factories import add_rollout, make_flag, make_group, make_policy, make_run
from tests.statements import statements_of

WINS = (0.5, 1.0, 0.0, 0.75, 0.25)
READS = "string_agg"


@pytest.fixture
def run(session: Session) -> Run:
    return make_run(session)


@pytest.fixture
def group(session: Session, run: Run) -> Group:
    return make_group(session, run)


@pytest.fixture
def made(session: Session, run: Run, group: Group) -> list[Rollout]:
    found = [add_rollout(session, run, group, [win, 1.0, 0.0], member, {}) for member, win in enumerate(WINS)]
    session.flush()
    return found


def listed(session: Session, run: Run, sort: str = "-win", where: str | None = None) -> list[int]:
    found = list_rollouts(session, run, RolloutFilter(sort=sort, where=where), scope_of(session, run))
    return [item.rollout.member for item in found.items]


def reads(session: Session, work: Callable[[], object]) -> int:
    """How often a whole list was read."""
    with statements_of(session) as sent:
        work()
    return sum(READS in statement for statement in sent)


def test_a_filter_and_an_order_are_read_once_each(session: Session, run: Run, made: list[Rollout]) -> None:
    assert reads(session, lambda: listed(session, run, "-win", "win > 0.3")) == 2
    assert reads(session, lambda: listed(session, run, "-win", "win > 0.3")) == 0
    assert reads(session, lambda: listed(session, run, "reward", "win > 0.3")) == 1
    assert reads(session, lambda: listed(session, run, "reward", "win < 0.6")) == 1
    assert listed(session, run, "-win", "win > 0.3") == [1, 3, 0]


def test_a_run_that_grows_is_searched(session: Session, run: Run, made: list[Rollout]) -> None:
    run.ended_at = None
    session.flush()
    assert reads(session, lambda: listed(session, run, "-win", "win > 0.3")) == 0
    assert listed(session, run, "-win", "win > 0.3") == [1, 3, 0]


def test_a_resumed_run_is_read_again(session: Session, run: Run, group: Group, made: list[Rollout]) -> None:
    assert listed(session, run) == [1, 3, 0, 4, 2]
    session.delete(made[1])
    run.ended_at = datetime.now(UTC)
    session.flush()
    assert listed(session, run) == [3, 0, 4, 2]
    add_rollout(session, run, group, [0.6, 1.0, 0.0], 7, {})
    session.flush()
    assert listed(session, run) == [3, 7, 0, 4, 2]


def test_flags_and_verdicts_change_lists(session: Session, run: Run, made: list[Rollout]) -> None:
    assert listed(session, run, where="has flag or verdict = hack") == []
    make_flag(session, run, made[2])
    assert listed(session, run, where="has flag or verdict = hack") == [2]
    session.add(VerdictRecord(run_id=run.id, rollout_id=made[3].id, verdict=Verdict.HACK, comment=""))
    session.flush()
    assert listed(session, run, where="has flag or verdict = hack") == [3, 2]
    assert listed(session, run, "-flag")[0] == 2


def test_another_score_of_a_judge_changes_its_order(session: Session, run: Run, made: list[Rollout]) -> None:
    judge = Grader(name="strict", kind=GraderKind.JUDGE, policy_id=make_policy(session).id, settings={})
    session.add(judge)
    session.flush()
    scores = [
        Grade(grader_id=judge.id, run_id=run.id, rollout_id=row.id, status=GradeStatus.COMPLETED, score=row.member / 10)
        for row in made
    ]
    session.add_all(scores)
    session.flush()
    assert listed(session, run, "-judge.strict") == [4, 3, 2, 1, 0]
    scores[0].score = 0.9
    session.flush()
    assert listed(session, run, "-judge.strict") == [0, 4, 3, 2, 1]
    assert listed(session, run, "seq", "judge.strict > 0.35") == [0, 4]


def test_marks_for_training_are_searched(session: Session, run: Run, made: list[Rollout]) -> None:
    assert listed(session, run, where="demonstration") == []
    made[0].is_demonstration = True
    session.flush()
    assert listed(session, run, where="demonstration") == [0]


def test_neighbors_are_those_of_the_list(session: Session, run: Run, made: list[Rollout]) -> None:
    def around(member: int, where: str | None, sort: str) -> tuple[uuid.UUID | None, uuid.UUID | None]:
        found = neighbors(session, made[member], RolloutFilter(where=where, sort=sort), scope_of(session, run))
        return found.previous, found.next

    asked = [(member, where, sort) for member in range(5) for where in (None, "win > 0.3") for sort in ("-win", "win")]
    kept = [around(*each) for each in asked]
    run.ended_at = None
    session.flush()
    assert kept == [around(*each) for each in asked]
    assert around(4, "win > 0.3", "-win") == (made[0].id, None)


def test_a_cursor_that_is_not_in_the_list_still_has_a_place(session: Session, run: Run, made: list[Rollout]) -> None:
    whole = list_rollouts(session, run, RolloutFilter(sort="-win", limit=4))
    part = RolloutFilter(sort="-win", where="win > 0.3 or win = 0", after=whole.next)
    assert [item.rollout.member for item in list_rollouts(session, run, part).items] == [2]


def test_pages_say_how_many_pass(session: Session, run: Run, made: list[Rollout]) -> None:
    wanted = RolloutFilter(sort="win", where="win > 0.3", limit=2)
    found = list_rollouts(session, run, wanted, scope_of(session, run), counts=True)
    assert found.matching is not None
    assert (len(found.items), found.matching.count, found.matching.is_more) == (2, 3, False)


def test_what_was_not_used_for_longest_goes_first() -> None:
    kept, asked = LruCache[np.ndarray[Any, Any]](250, attrgetter("nbytes")), list[str]()

    def get(name: str) -> None:
        def read() -> np.ndarray[Any, Any]:
            asked.append(name)
            return np.zeros(100, dtype=np.bool_)

        kept.get(name, read)

    for name in ("one", "two", "one", "three", "one", "two"):
        get(name)
    assert asked == ["one", "two", "three", "two"]
