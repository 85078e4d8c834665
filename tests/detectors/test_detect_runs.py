"""Each detector of runs over steps written by hand: one run that it flags, and the nearest honest one."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from backend.domain.detectors.run_view import BaseTask, HeldoutResult, RolloutRow, SecondVerifier
from backend.domain.detectors.settings import Threshold
from backend.domain.results.pass_at_k import SuccessRule
from tests.detectors.rows import BATCH, WIN, flags, row
from workers.detectors.scanner import RunScanner

Step = Callable[[int], list[RolloutRow]]


def steps(make: Step, count: int = 20) -> list[list[RolloutRow]]:
    return [make(number) for number in range(count)]


def scored(win: float, style: float, **fields) -> RolloutRow:
    return row(win + 0.2 * style, columns={"win": win, "style": style}, **fields)


@pytest.mark.parametrize(("style", "is_bad"), [(4.0, True), (0.5, False)])
def test_a_column_that_outgrows_its_share_is_flagged(style: float, is_bad: bool):
    def make(number: int) -> list[RolloutRow]:
        return [scored(0.3, 0.2 if number < 10 else style) for _ in range(8)]

    weights = replace(WIN, weights={"win": 1.0, "style": 1.0}, shares={"win": 0.5, "style": 0.5})
    assert bool(flags("component_dominance", *steps(make), context=weights)) is is_bad


def test_winning_more_is_no_dominance():
    def make(number: int) -> list[RolloutRow]:
        return [scored(min(1.0, 0.2 + 0.05 * number), 1.0) for _ in range(8)]

    assert not flags("component_dominance", *steps(make), context=WIN)


@pytest.mark.parametrize(("share", "is_bad"), [(0.95, True), (0.6, False)])
def test_a_reward_at_its_ceiling_is_noted(share: float, is_bad: bool):
    def make(number: int) -> list[RolloutRow]:
        return [row(1.2 if member < share * 20 else 0.4) for member in range(20)]

    assert bool(flags("ceiling_saturation", *steps(make, 6), context=WIN)) is is_bad


def test_how_near_its_ceiling_a_reward_counts_is_a_threshold():
    rows = [row(1.1, f"<move>{number}</move>") for number in range(20)]
    found = {}
    for of_highest in (0.99, 0.9):
        scanner = RunScanner(WIN)
        scanner.tune([Threshold(detector="ceiling_saturation", name="of_highest", value=of_highest)])
        drafts = [draft for step in range(1, 7) for draft in scanner.scan(step, rows)]
        found[of_highest] = [draft for draft in drafts if draft.detector == "ceiling_saturation"]
    assert [len(each) for each in found.values()] == [0, 1]
    assert found[0.9][0].evidence["series"]["at_ceiling"] == [1.0] * 5


@pytest.mark.parametrize(("sign", "is_bad"), [(1, True), (-1, False)])
def test_length_that_pays_is_flagged_when_it_grows(sign: int, is_bad: bool):
    def make(number: int) -> list[RolloutRow]:
        dice = random.Random(number)
        lengths = [dice.randint(10, 20) * (1 + number // 10) for _ in range(24)]
        return [row(0.5 + sign * n / 100, tokens_out=n, group=str(i // 4)) for i, n in enumerate(lengths)]

    assert bool(flags("length_reward", *steps(make), context=WIN)) is is_bad


@pytest.mark.parametrize(("tokens", "is_bad"), [(4, True), (14, False)])
def test_less_effort_for_more_success_is_flagged(tokens: int, is_bad: bool):
    def make(number: int) -> list[RolloutRow]:
        late = number >= 12
        return [scored(1.0 if i < (7 if late else 3) else 0.0, 0, tokens_out=tokens if late else 20) for i in range(8)]

    assert bool(flags("effort_collapse", *steps(make), context=WIN)) is is_bad


@pytest.mark.parametrize(("gap", "keys"), [(0.4, ["grave"]), (0.02, [])])
def test_a_training_reward_that_runs_ahead_of_the_held_out_one_is_flagged(gap: float, keys: list[str]):
    scanner = RunScanner(WIN)
    found = []
    for number in range(1, 21):
        if number % 5 == 1:
            scanner.add_heldout(HeldoutResult(number - 1, 0.5 + 0.01 * number, 0.01))
        found += scanner.scan(number, [row(0.5 + 0.01 * number + gap * number / 20) for _ in range(8)])
    assert [draft.key for draft in found if draft.detector == "heldout_gap" and draft.key == "grave"] == keys


@pytest.mark.parametrize(("passes", "is_bad"), [(12, True), (6, False)])
def test_a_task_that_the_base_never_solved_is_flagged_when_it_is_always_solved(passes: int, is_bad: bool):
    context = replace(BATCH, base={"train/0": BaseTask(16, 0), "train/1": BaseTask(16, 9)})
    rows = [scored(1.0 if i < passes else 0.0, 0) for i in range(12)]
    others = [scored(1.0, 0, task="train/1") for _ in range(12)]
    found = flags("too_good", [*rows, *others], context=context)
    assert bool(found) is is_bad
    assert all(draft.evidence["tasks"] == ["train/0"] for draft in found)


def test_a_training_run_is_not_too_good_to_be_true():
    """From never to always is what it is for."""
    context = replace(WIN, base={"train/0": BaseTask(16, 0)})
    assert not flags("too_good", *steps(lambda _: [scored(1.0, 0) for _ in range(12)]), context=context)


@pytest.mark.parametrize(("disputed", "is_bad"), [(9, True), (1, False)])
def test_two_verifiers_that_disagree_are_flagged(disputed: int, is_bad: bool):
    context = replace(BATCH, success=replace(WIN.success, column="reward", at_least=0.6))
    rows = [row(1.0, second_reward=0.0 if i < disputed else 1.0) for i in range(100)]
    assert bool(flags("second_verifier", rows, context=context)) is is_bad


@pytest.mark.parametrize(("disputed", "is_bad"), [(9, True), (1, False)])
def test_each_verifier_judges_by_its_own_rule(disputed: int, is_bad: bool):
    """The same column under another name, with another weight."""
    context = replace(BATCH, second=SecondVerifier("game v2", SuccessRule("solved", 2.0)))
    others = [{"solved": 0.0 if i < disputed else 2.0} for i in range(100)]
    rows = [scored(1.0, 0, second_reward=7.0, second_columns=each) for each in others]
    found = flags("second_verifier", rows, context=context)
    assert [draft.key for draft in found] == (["game v2"] if is_bad else [])
    assert all(len(draft.evidence["rollouts"]) == 5 for draft in found)


def test_an_evaluation_has_no_steps_to_compare():
    def make(number: int) -> list[RolloutRow]:
        return [scored(0.3, 0.2 if number < 10 else 4.0, tokens_out=5 + 20 * (number // 10)) for _ in range(8)]

    scanner = RunScanner(BATCH)
    found = {draft.detector for number in range(20) for draft in scanner.scan(0, make(number))}
    assert not found & {"length_shift", "component_dominance", "column_divergence", "reward_jump"}
