"""Each detector at its threshold: what it flags, what it leaves, and that it says a thing once."""

import random
import uuid
from importlib.util import find_spec

import pytest

from backend.domain.detectors import catalogue
from backend.domain.detectors.catalogue.column_divergence import trend_of
from backend.domain.detectors.catalogue.repeated_text import worst_repetition
from backend.domain.detectors.catalogue.reward_jump import cusum
from backend.domain.detectors.registry import ROLLOUT_DETECTORS, RUN_DETECTORS, SPECS
from backend.domain.detectors.run_view import EnvironmentContext, RolloutRow
from backend.domain.detectors.spec import FlagDraft
from workers.detectors.scanner import MAX_FLAGS, RunScanner

LIMITS = SPECS["repeated_text"].thresholds


def make_row(group: int, reward: float = 0.5, **fields) -> RolloutRow:
    values = {
        "columns": {"win": reward},
        "replies": (f"<move>{random.Random(group).randint(1, 9)}</move>",),
        "tokens_out": 5,
        "stop_reason": "done",
        **fields,
    }
    return RolloutRow(id=uuid.uuid4(), group=str(group), task=str(group), reward=reward, **values)


def make_step(seed: int, **fields) -> list[RolloutRow]:
    """Eight groups of four with noisy rewards."""
    dice = random.Random(seed)
    return [make_row(group, round(dice.random(), 3), **fields) for group in range(8) for _ in range(4)]


def watch_steps(steps: list[list[RolloutRow]]) -> list[FlagDraft]:
    scanner = RunScanner(EnvironmentContext(("win",)))
    return [draft for number, rows in enumerate(steps, 1) for draft in scanner.scan(number, rows)]


def flagged(steps: list[list[RolloutRow]], detector: str) -> list[FlagDraft]:
    return [draft for draft in watch_steps(steps) if draft.detector == detector]


def test_every_detector_shows_what_it_looks_for_how_and_from_where():
    detectors = (*RUN_DETECTORS, *ROLLOUT_DETECTORS)
    assert {detector.id for detector in detectors} == set(SPECS) - {"metamorphic", "unseen_inputs"}
    assert len({detector.id for detector in detectors}) == len(detectors) >= 22
    for name, spec in SPECS.items():
        assert all([spec.title, spec.description, spec.formula, spec.source, spec.thresholds])
        assert find_spec(f"{catalogue.__name__}.{name}"), "a module has the name of its detector"
        for threshold, setting in spec.settings.items():
            assert setting.description.endswith(".")
            assert spec.problem_with(threshold, setting.default) is None


def test_thresholds_have_limits() -> None:
    spec = SPECS["repeated_text"]
    assert spec.problem_with("common", 0.5) is None
    assert spec.problem_with("common", 1.5) == "common must be a number from 0 to 1."
    assert SPECS["reward_jump"].problem_with("cusum", -1) == "cusum must be at least 0."


def test_a_jump_is_flagged_once_at_its_step_and_a_slope_is_not():
    noise = [random.Random(n).gauss(0, 0.01) for n in range(60)]
    slope = [0.3 + 0.006 * n + noise[n] for n in range(60)]
    jump = [0.3 + (0.3 if n >= 40 else 0.0) + noise[n] for n in range(60)]
    assert max(cusum(slope)) < 6
    found = flagged([[make_row(0, value), make_row(1, value)] for value in jump], "reward_jump")
    assert [draft.key for draft in found] in (["step-41"], ["step-42"])
    assert found[0].evidence["window"][0] in {40, 41}
    assert not flagged([[make_row(0, value), make_row(1, value)] for value in slope], "reward_jump")


@pytest.mark.parametrize(
    ("values", "direction"),
    [(range(10), 1), (range(10, 0, -1), -1), ([3.0] * 10, 0), ([1, 5, 2, 4, 3, 5, 1, 4, 2, 3], 0)],
    ids=["rising", "falling", "constant", "noise"],
)
def test_trends(values, direction: int):
    assert trend_of(list(values)).direction(0.01) == direction


@pytest.mark.parametrize(
    ("reply", "is_repetition"),
    [
        ("I will win this. " * 20, True),
        ("<move>" * 32, True),
        ("<move>5</move>", False),
        ("The quick brown fox jumps over the lazy dog, and then it runs home through the long wet grass again.", False),
        ("", False),
    ],
    ids=["sentence", "tag", "a move", "prose", "empty"],
)
def test_repetition_is_judged_reply_by_reply(reply: str, is_repetition: bool):
    assert (worst_repetition((reply,), LIMITS) is not None) is is_repetition


def test_alike_turns_are_not_repetition():
    assert worst_repetition(("<guess>5</guess>",) * 10, LIMITS) is None


def test_a_repeating_rollout_is_flagged_with_the_span_of_the_text():
    reply = "Well. " + "I will win this. " * 20
    bad = make_row(0, replies=("<move>1</move>", reply))
    [draft] = flagged([[bad, *make_step(1)]], "repeated_text")
    assert (draft.rollout_id, draft.key) == (bad.id, str(bad.id))
    [span] = draft.evidence["spans"]
    assert span["turn"] == 1
    assert reply[span["start"] : span["end"]].count("I will win") == 20


def test_every_rollout_that_repeats_itself_is_flagged_and_alike_ones_are_a_cluster():
    steps = [[make_row(n, replies=("again and again " * 30,)) for n in range(8)] for _ in range(15)]
    found = flagged(steps, "repeated_text")
    assert len(found) == 8 * 15 > MAX_FLAGS
    assert len({draft.cluster for draft in found}) == 1


def test_a_policy_that_cannot_write_yet_is_not_flagged_for_what_it_is_not_paid_for():
    rows = [make_row(n, 0.0, replies=("the the the the " * 10,)) for n in range(8)] + [make_row(8, 1.0)]
    assert not flagged([rows], "repeated_text")


@pytest.mark.parametrize(("tokens", "key"), [(20, "longer"), (2, "shorter")])
def test_a_length_that_blows_up_or_collapses_is_flagged_once(tokens: int, key: str):
    steps = [make_step(n, tokens_out=5 + n % 2) for n in range(12)] + [
        make_step(n, tokens_out=tokens) for n in range(9)
    ]
    assert [draft.key for draft in flagged(steps, "length_shift")] == [key]


def test_a_length_that_wanders_a_little_is_not_flagged():
    assert not flagged([make_step(n, tokens_out=5 + n // 12) for n in range(36)], "length_shift")


@pytest.mark.parametrize(("rewards", "key"), [((1.0, 1.0, 1.0, 0.0), "all_good"), ((0.0, 0.0, 0.0, 1.0), "all_bad")])
def test_groups_without_variance_are_flagged_with_their_cause(rewards: tuple[float, ...], key: str):
    steps = [[make_row(group, rewards[group % 4]) for group in range(8) for _ in range(4)] for _ in range(12)]
    [draft] = flagged(steps, "variance_gone")
    assert draft.key == key
    assert draft.training_step == 10


def test_groups_with_variance_are_not_flagged():
    assert not flagged([make_step(n) for n in range(20)], "variance_gone")


def test_evaluations_without_groups_have_no_variance_to_lose():
    assert not flagged([[make_row(n) for n in range(20)] for _ in range(15)], "variance_gone")


def test_a_policy_that_writes_the_same_for_every_task_is_flagged():
    steps = [make_step(n) for n in range(12)] + [make_step(n, replies=("<move>5</move>",) * 3) for n in range(10)]
    [draft] = flagged(steps, "template_collapse")
    assert draft.evidence["replies"] == ["<move>5</move>"] * 3


def test_a_policy_that_always_did_so_is_not_news():
    assert not flagged([make_step(n, replies=("<move>5</move>",)) for n in range(25)], "template_collapse")


def test_exits_that_cost_reward_are_not_flagged_as_paying():
    def worse(seed: int) -> list[RolloutRow]:
        return [make_row(row.task, row.reward / 3, stop_reason="unparsable") for row in make_step(seed)]

    assert not flagged([make_step(n) for n in range(15)] + [worse(n) for n in range(10)], "early_exit")


def test_steps_without_completed_rollouts_say_nothing():
    assert watch_steps([[], [], []]) == []
