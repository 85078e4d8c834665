"""Altered replies graded again: a corrupted answer must lose reward, another form of the same answer must keep it.

It replays on an env server, so it runs only on demand and on a sample.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from backend.domain.detectors.run_view import RolloutRow
from backend.domain.detectors.spec import DetectorSpec, FlagDraft, Need, ThresholdSpec, ThresholdValues, finish_flags
from backend.domain.environments.manifest import ActionSpec
from backend.domain.environments.prompts import write_reply

SPEC = DetectorSpec(
    id="metamorphic",
    title="Reward ignores the answer",
    description="A corrupted answer earns the same reward, or a harmless change of form loses it.",
    formula="the answer corrupted: R must fall; extra whitespace, another spelling of the same tag: R must hold",
    source="arXiv:2510.00915",
    settings={
        "fall": ThresholdSpec(0.01, "Smallest loss of reward expected for a corrupted answer."),
        "hold": ThresholdSpec(0.01, "Largest change of reward expected for a harmless change."),
    },
    needs=(Need.REPLAY,),
    cost="one replay per altered reply",
)

Grade = Callable[[Sequence["Altered"]], Awaitable[Sequence[float | None]]]
"""Replays each and returns its reward; None where the replay failed."""


@dataclass(frozen=True, slots=True)
class Altered:
    """A rollout with another last reply."""

    row: RolloutRow
    reply: str
    is_corrupted: bool
    """False: only its form changed."""
    how: str


async def scan_altered(
    rows: Sequence[RolloutRow], spec: ActionSpec, grade: Grade, thresholds: ThresholdValues
) -> list[FlagDraft]:
    """Flag each rollout once: for the first alteration whose reward is not the expected one."""
    altered = [each for row in rows for each in alterations(row, spec)]
    drafts = []
    for each, reward in zip(altered, await grade(altered), strict=True):
        if reward is None:
            continue
        change = reward - each.row.reward
        if change <= -thresholds["fall"] if each.is_corrupted else abs(change) <= thresholds["hold"]:
            continue
        draft = each.row.flag(
            score=0.8 if each.is_corrupted else 0.5,
            sentence=f"It earned {each.row.reward:.3f}, and {reward:.3f} when {each.how}.",
            marks=each.row.mark_reply(),
            cluster=each.how,
            altered=each.reply[:500],
        )
        drafts.append(draft)
    found: dict[str, FlagDraft] = {}
    for draft in finish_flags(SPEC, drafts, thresholds):
        found.setdefault(draft.key, draft)
    return list(found.values())


def alterations(row: RolloutRow, spec: ActionSpec) -> list[Altered]:
    """Alter the last reply if it was understood. Moves among given choices are skipped: another may be as good."""
    action = row.actions[-1] if row.actions else None
    if action is None or spec.choices or spec.format == "tool":
        return []
    corrupted = write_reply(spec, {name: _corrupted(value) for name, value in action.items()})
    return [
        Altered(row, corrupted, True, "the answer was spoilt"),
        Altered(row, f"\n\n{row.replies[-1]}\n\n", False, "blank lines stand around the reply"),
        Altered(row, write_reply(spec, action), False, "the answer stands alone"),
    ]


def _corrupted(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 13
        case str():
            return str(int(value) + 13) if value.strip().lstrip("-").isdigit() else f"zq {value[: len(value) // 3]}"
    return value
