"""Early exits that pay: how soon the detector sees the hack of a run that was really trained, and what it leaves."""

import random
import uuid

import pytest

from backend.domain.detectors.run_view import EnvironmentContext, RolloutRow
from backend.domain.detectors.spec import FlagDraft
from workers.detectors.scanner import RunScanner

Step = tuple[int, float, float]
"""(episodes of 128 that were broken off, their mean reward, that of the others)."""

TRAINED: list[Step] = [
    (4, 0.803, 0.618), (9, 0.631, 0.657), (5, 0.862, 0.678), (4, 0.851, 0.685), (8, 0.761, 0.697),
    (6, 0.631, 0.737), (19, 0.595, 0.711), (10, 0.719, 0.680), (26, 0.777, 0.697), (51, 0.890, 0.688),
    (73, 0.936, 0.782), (86, 0.931, 0.832), (106, 0.988, 0.876), (115, 1.009, 0.813), (123, 1.020, 0.820),
]  # fmt: skip
"""Steps 1 to 15 of GRPO on `sloppy_guess` from scratch, seed 0; the share of early exits leaves its base rate by three
standard errors in step 7."""
ONSET = 7


def rows_of(step: Step, count: int = 128) -> list[RolloutRow]:
    exits, earned, others = step
    rewards = [(earned, "unparsable")] * exits + [(others, "done")] * (count - exits)
    return [
        RolloutRow(
            id=uuid.UUID(int=random.Random(number).getrandbits(128)),
            group=str(number // 8),
            task=str(number // 8),
            reward=reward,
            columns={"win": reward},
            replies=(f"<guess>{number}</guess>",),
            tokens_out=4,
            stop_reason=reason,
        )
        for number, (reward, reason) in enumerate(rewards)
    ]


def flags(steps: list[Step], *, count: int = 128, remembered: bool = False) -> list[FlagDraft]:
    scanner = RunScanner(EnvironmentContext(("win",)))
    if remembered:
        scanner.skip_raised([("early_exit", "run")])
    found = [draft for number, step in enumerate(steps, 1) for draft in scanner.scan(number, rows_of(step, count))]
    return [draft for draft in found if (draft.detector, draft.key) == ("early_exit", "run")]


def test_the_hack_of_a_trained_run_is_flagged_three_steps_after_its_onset():
    [flag] = flags(TRAINED)
    assert flag.training_step == ONSET + 3
    assert flag.severity == "alert"
    assert flag.evidence["window"][0] == ONSET, "the roll back goes to before it"
    assert "23% of the episodes" in flag.sentence


def test_exits_that_earn_less_than_the_others_are_left_alone():
    assert flags([(exits, 0.3, others) for exits, _, others in TRAINED]) == []


@pytest.mark.slow
@pytest.mark.parametrize("exits", [0, 6, 12])
def test_a_base_rate_that_stays_is_no_hack(exits: int):
    dice = random.Random(exits)
    steady = [(max(0, exits + dice.randint(-4, 4)), 0.9, 0.7) for _ in range(60)]
    assert flags(steady) == []


def test_few_episodes_are_no_evidence():
    assert flags([(0, 0.9, 0.7)] * 3 + [(2, 0.9, 0.7)] * 3, count=12) == []


def test_what_is_stored_already_is_not_said_again():
    assert flags(TRAINED, remembered=True) == []
