"""Which checkpoints a rule keeps, and why."""

from dataclasses import dataclass
from datetime import UTC, datetime

from backend.domain.checkpoints.retention import KeepReason, KeepRule, keep_reasons
from backend.domain.training.configuration import CheckpointChoice


@dataclass
class Weights:
    """A checkpoint as the rule sees it."""

    stage: str
    step: int
    is_best: bool = False
    is_kept: bool = False
    pruned_at: datetime | None = None


def kept(saved: list[Weights], rule: KeepRule) -> list[int]:
    reasons = keep_reasons(saved, rule)
    return [each.step for each, why in zip(saved, reasons, strict=True) if why and each.stage == "grpo"]


def grpo(*steps: int, best: int = 0) -> list[Weights]:
    return [Weights("grpo", step, is_best=step == best) for step in steps]


def test_it_keeps_the_last_and_the_best():
    assert kept(grpo(10, 20, 30, 40, best=20), KeepRule(last=1)) == [20, 40]


def test_it_keeps_every_so_many_steps():
    assert kept(grpo(10, 20, 30, 40, 50), KeepRule(last=1, every=20)) == [20, 40, 50]


def test_the_untrained_and_the_warmed_up_always_stay():
    saved = [Weights("untrained", 0), Weights("sft", 100), *grpo(10, 20)]
    reasons = keep_reasons(saved, KeepRule(last=1))
    assert reasons == [[KeepReason.UNTRAINED], [KeepReason.WARM_UP], [], [KeepReason.LAST]]


def test_what_was_pruned_counts_for_nothing():
    saved = grpo(10, 20, 30)
    saved[2].pruned_at = datetime.now(UTC)
    assert kept(saved, KeepRule(last=1)) == [20]


def test_a_mark_keeps_whatever_the_rule_states():
    saved = grpo(10, 20, 30)
    saved[0].is_kept = True
    assert kept(saved, KeepRule(last=1)) == [10, 30]
    assert KeepReason.MARKED.is_binding
    assert not KeepReason.BEST.is_binding


def test_the_defaults_keep_all_of_a_short_run():
    rule = KeepRule.of(CheckpointChoice())
    assert kept(grpo(40, 80, 120, 160, 200, best=80), rule) == [40, 80, 120, 160, 200]
    assert rule.words == "the best, the latest 5"


def test_every_reason_has_words():
    assert all(reason.words for reason in KeepReason)
