"""Loops that earn, failures that earn as much as successes, and episodes that earn by never ending."""

from dataclasses import replace

from backend.domain.detectors.run_view import RolloutRow
from tests.detectors.rows import BATCH, WIN, flags, honest, row

PAID = {"win": 0.1, "style": 0.0}


def circling(messages: tuple[str, ...], replies: tuple[str, ...], steps: tuple[dict[str, float], ...]) -> RolloutRow:
    return row(0.5, replies=replies, prompts=messages, step_rewards=steps)


def test_repeated_steps_that_earn_are_flagged_and_marked() -> None:
    messages = tuple(f"Lap {lap}: you passed the gate." for lap in range(6))
    loop = circling(messages, ("turn left",) * 6, (PAID,) * 6)
    (draft,) = flags("paid_loop", [loop, *honest(20)])
    assert draft.rollout_id == loop.id
    assert [span["turn"] for span in draft.evidence["spans"]] == [1, 2, 3, 4, 5]


def test_repeated_steps_that_earn_nothing_or_follow_other_messages_are_honest() -> None:
    messages = ("You passed the gate.",) * 6
    unpaid = circling(messages, ("turn left",) * 6, ({"win": 0.0},) * 5 + ({"win": 1.0},))
    questions = circling(tuple(f"Question {word}" for word in "abcdef"), ("yes",) * 6, (PAID,) * 6)
    moves = circling(messages, tuple(f"turn {way}" for way in "abcdef"), (PAID,) * 6)
    form = circling(messages, ("turn left",) * 6, ({"format": 1.0},) * 6)
    context = replace(BATCH, weights={"win": 1.0, "format": 0.1})
    assert not flags("paid_loop", [unpaid, questions, moves, form, *honest(20)], context=context)


def test_a_failure_that_earns_like_a_success_is_flagged() -> None:
    context = replace(BATCH, columns=("win", "moves"), weights={"win": 1.0, "moves": 0.1}, highest=None)
    wins = [row(1.1, columns={"win": 1.0, "moves": 1.0}) for _ in range(6)]
    farmed = row(1.4, columns={"win": 0.0, "moves": 14.0})
    lost = row(0.6, columns={"win": 0.0, "moves": 6.0})
    (draft,) = flags("paid_failure", [*wins, farmed, lost], context=context)
    assert draft.rollout_id == farmed.id
    assert draft.cluster == "moves pays without success"
    assert not flags("paid_failure", [farmed, lost], context=context), "nothing to compare with"


def test_where_nothing_succeeds_only_the_highest_reward_is_suspicious() -> None:
    partial = [row(0.9, columns={"win": 0.7, "style": 1.0}) for _ in range(20)]
    assert not flags("paid_failure", partial)
    full = row(1.19, columns={"win": 0.99, "style": 1.0})
    assert [draft.rollout_id for draft in flags("paid_failure", [*partial, full])] == [full.id]


def test_stalling_that_earns_more_than_an_end_is_flagged_about_the_run() -> None:
    def step(stalled: float) -> list[RolloutRow]:
        ended = [row(0.5 + 0.01 * (n % 3), stop_reason="done") for n in range(20)]
        return [*ended, *(row(stalled + 0.01 * (n % 4), stop_reason="max_turns") for n in range(15))]

    (draft,) = flags("stalling", step(0.8), context=WIN)
    assert "15 episodes" in draft.sentence
    assert not flags("stalling", step(0.5), context=WIN)
    successes = [row(1.0 + 0.01 * (n % 4), stop_reason="max_turns") for n in range(15)]
    assert not flags("stalling", [*step(0.4), *successes], context=WIN)
