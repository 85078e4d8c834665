"""Stored replies on another version: what it answers is stored, and the first step that goes another way."""

import pytest

from backend.core.session import transaction
from backend.domain.vocabulary import RolloutStatus, RunKind, RunStatus, StopReason
from backend.rollouts.regrading.queries import diverging_steps, most_changed
from tests.rollouts.regrading.conftest import World, rollouts_of
from tests.rollouts.regrading.test_another_versions_rewards import BREAKS, EARLIER, LATER, SHOWS_MORE, TIDIER


def test_the_same_version_answers_the_same(world: World) -> None:
    own = world.version()
    source_id = world.played(own, group_size=2)
    run = world.replay(source_id, version_id=own)
    assert (run.kind, run.status) == (RunKind.REPLAY, RunStatus.COMPLETED)
    before, after = rollouts_of(source_id), rollouts_of(run.id)
    assert [rollout.metrics for rollout in after] == [rollout.metrics for rollout in before]
    assert [rollout.reward for rollout in after] == [rollout.reward for rollout in before]
    assert [rollout.messages for rollout in after] == [rollout.messages for rollout in before]
    assert run.summary["rescoring"]["diverged"] == 0
    assert (after[0].cost, after[0].policy_seconds, after[0].tokens_in) == (None, 0.0, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("other", "step"), [(TIDIER, 1), (SHOWS_MORE, 1), (EARLIER, 2), (LATER, 3)])
def test_the_first_step_that_goes_another_way_is_stored(world: World, other: str, step: int) -> None:
    run = world.replay(world.played(world.version()), version_id=world.version(other))
    assert [rollout.metrics["diverged_at"] for rollout in rollouts_of(run.id)] == [step] * 4
    with transaction() as session:
        assert diverging_steps(session, run.id) == {step: 4}
        assert len(most_changed(session, run.id)) == 4


def test_replies_that_end_too_early_keep_how_the_original_ended(world: World) -> None:
    run = world.replay(world.played(world.version()), version_id=world.version(LATER))
    after = rollouts_of(run.id)
    assert [(each.stop_reason, each.metrics["replies_ended"]) for each in after] == [(StopReason.DONE, 1)] * 4


def test_replies_that_are_left_over_are_counted(world: World) -> None:
    run = world.replay(world.played(world.version()), version_id=world.version(EARLIER))
    assert [(each.turns, each.metrics["replies_left"]) for each in rollouts_of(run.id)] == [(2, 1)] * 4


@pytest.mark.slow
def test_a_version_that_breaks_leaves_failed_rows(world: World) -> None:
    run = world.replay(world.played(world.version()), version_id=world.version(BREAKS))
    assert {(each.status, each.reward) for each in rollouts_of(run.id)} == {(RolloutStatus.FAILED, None)}


@pytest.mark.slow
def test_long_and_short_episodes_of_one_run_are_distinguished(world: World) -> None:
    own = world.version()
    source_id = world.played(own, "2", tasks=3)
    other = world.replay(source_id, version_id=own)
    assert [(each.turns, each.reward) for each in rollouts_of(other.id)] == [
        (each.turns, each.reward) for each in rollouts_of(source_id)
    ]
