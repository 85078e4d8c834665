"""Lists of rollouts and groups: filters, orders and cursors."""

from typing import Any

import pytest
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Phase, RolloutStatus
from backend.errors import InvalidInput
from backend.results.groups import groups
from backend.rollouts.queries import get_rollout, list_rollouts, neighbors, siblings
from backend.rollouts.scope import scope_of
from backend.rollouts.tables import Rollout
from backend.runs.schemas import GroupFilter, RolloutFilter
from tests.factories import make_flag, make_rollouts, make_run, random_rows


def all_of(session: Session, run: Any, limit: int = 7, **wanted: Any) -> list[Rollout]:
    """Everything that the cursor leads to."""
    found: list[Rollout] = []
    after = None
    while True:
        part = list_rollouts(session, run, RolloutFilter(**wanted, after=after, limit=limit))
        found += [listed.rollout for listed in part.items]
        after = part.next
        if after is None:
            return found


@pytest.mark.parametrize("sort", ["seq", "-seq", "reward", "-reward", "win", "-format", "tokens", "-advantage", "step"])
def test_the_cursor_leads_through_every_rollout_once(session: Session, sort: str) -> None:
    run = make_run(session)
    made = make_rollouts(session, run, random_rows(40, failing=0.2), group_size=2)
    found = all_of(session, run, sort=sort)
    assert len(found) == 40
    assert {rollout.id for rollout in found} == {rollout.id for rollout in made}


def test_failed_rollouts_come_last_whichever_way_rewards_are_sorted(session: Session) -> None:
    run = make_run(session)
    make_rollouts(session, run, [[1, 1, 0], None, [0, 1, 0]])
    for sort in ("reward", "-reward"):
        assert all_of(session, run, sort=sort)[-1].status is RolloutStatus.FAILED


def test_rewards_are_sorted_by_size(session: Session) -> None:
    run = make_run(session)
    make_rollouts(session, run, random_rows(30))
    rewards = [rollout.reward for rollout in all_of(session, run, sort="-reward")]
    assert rewards == sorted(rewards, reverse=True)


def test_filters_keep_what_they_say(session: Session) -> None:
    run = make_run(session)
    rows = random_rows(40, failing=0.1)
    made = make_rollouts(session, run, rows, phase=Phase.TRAIN, step=3)
    make_rollouts(session, run, [[1, 1, 0]] * 5, phase=Phase.HELDOUT, step=3)
    won = [rollout for rollout, row in zip(made, rows, strict=True) if row and row[0] == 1.0]
    assert len(all_of(session, run, phase=Phase.TRAIN)) == 40
    assert len(all_of(session, run, step=3)) == 45
    assert len(all_of(session, run, step=4)) == 0
    assert len(all_of(session, run, phase=Phase.TRAIN, status="failed")) == sum(row is None for row in rows)
    assert len(all_of(session, run, phase=Phase.TRAIN, column="win", min_column=1.0)) == len(won)
    assert len(all_of(session, run, phase=Phase.TRAIN, level=2)) == 10
    assert len(all_of(session, run, phase=Phase.HELDOUT, min_reward=1.2, max_reward=1.2)) == 5


def test_text_is_found_anywhere_in_the_conversation(session: Session) -> None:
    run = make_run(session)
    said = [{"role": "assistant", "content": 'I say "100% sure"\nand move'}]
    make_rollouts(session, run, [[1, 1, 0]], messages=said)
    other = make_run(session, run.version)
    make_rollouts(session, other, [[1, 1, 0]])
    assert len(all_of(session, run, text='"100% SURE"\nand')) == 1
    assert len(all_of(session, run, text="100_ sure")) == 0
    assert len(all_of(session, other, text="100% sure")) == 0


def test_flagged_ones_are_found(session: Session) -> None:
    run = make_run(session)
    made = make_rollouts(session, run, [[1, 1, 0]] * 3)
    make_flag(session, run, made[1])
    part = list_rollouts(session, run, RolloutFilter(flagged=True))
    assert [(listed.rollout.id, listed.flags) for listed in part.items] == [(made[1].id, ("repeated_text",))]


def test_an_unknown_order_or_column_is_refused(session: Session) -> None:
    run = make_run(session)
    with pytest.raises(InvalidInput):
        list_rollouts(session, run, RolloutFilter(sort="password"))
    with pytest.raises(InvalidInput):
        list_rollouts(session, run, RolloutFilter(column="nothing", min_column=1))


def test_a_list_loads_no_transcripts(session: Session) -> None:
    run = make_run(session)
    make_rollouts(session, run, [[1, 1, 0]])
    session.expunge_all()
    listed = list_rollouts(session, run, RolloutFilter()).items[0].rollout
    assert not {"steps", "messages", "tokens", "opening"} & set(listed.__dict__)


def test_neighbors_and_siblings(session: Session) -> None:
    run = make_run(session)
    made = make_rollouts(session, run, [[1, 1, 0]] * 6, group_size=3)
    middle = get_rollout(session, made[2].id)
    scope = scope_of(session, run)
    around = neighbors(session, middle, RolloutFilter(sort="seq"), scope)
    assert (around.previous, around.next) == (made[1].id, made[3].id)
    assert [rollout.id for rollout in siblings(session, middle)] == [rollout.id for rollout in made[:3]]
    assert neighbors(session, made[0], RolloutFilter(sort="seq"), scope).previous is None


def test_groups_say_whether_their_members_differ(session: Session) -> None:
    run = make_run(session)
    rows = [[1, 1, 0], [0, 1, 0], [1, 1, 0], [1, 1, 0], None, [1, 1, 0]]
    made = make_rollouts(session, run, rows, group_size=2)
    found = groups(session, run, GroupFilter(limit=2))
    rest = groups(session, run, GroupFilter(after=found.next, limit=2))
    listed = [*found.items, *rest.items]
    assert [group.is_mixed for group in listed] == [True, False, False]
    assert listed[2].rewards == [None, pytest.approx(1.2)]
    assert listed[0].rollout_ids == [made[0].id, made[1].id]
    assert len(groups(session, run, GroupFilter(spread="mixed")).items) == 1
    assert len(groups(session, run, GroupFilter(spread="same")).items) == 2
