"""Altered replies graded again: a spoilt answer must lose reward, another form of the same answer must keep it.

It replays on an env server, so it runs only on demand and on a sample.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from backend.domain.detectors.flags import FlagDraft, ThresholdValues, exceeds_threshold, flag_rollout, whole_reply
from backend.domain.detectors.run_view import RolloutRow
from backend.domain.detectors.spec import DetectorSpec, Need, Setting
from backend.domain.environments.manifest import ActionSpec
from backend.domain.environments.prompts import write_reply

SPEC = DetectorSpec(
    id="metamorphic",
    title="Reward ignores the answer",
    description="A corrupted answer earns the same reward, or a harmless change of form loses it.",
    formula="the answer corrupted: R must fall; extra whitespace, another spelling of the same tag: R must hold",
    source="arXiv:2510.00915",
    settings={
        "fall": Setting(0.01, "Smallest loss of reward expected for a corrupted answer."),
        "hold": Setting(0.01, "Largest change of reward expected for a harmless change."),
    },
    needs=(Need.REPLAY,),
    cost="one replay per altered reply",
)

Grade = Callable[[Sequence["Altered"]], Awaitable[Sequence[float | None]]]
"""Replays each and says what it earns; None where the replay failed."""


@dataclass(frozen=True, slots=True)
class Altered:
    """A rollout whose last reply is another."""

    row: RolloutRow
    reply: str
    is_spoilt: bool
    """Else only its form changed."""
    how: str


async def look_at_altered(
    rows: Sequence[RolloutRow], spec: ActionSpec, grade: Grade, thresholds: ThresholdValues
) -> list[FlagDraft]:
    altered = [each for row in rows for each in alterations(row, spec)]
    graded = zip(altered, await grade(altered), strict=True)
    found: dict[str, FlagDraft] = {}
    for each, reward in graded:
        if reward is None or not _is_violated(each, reward, thresholds):
            continue
        draft = _draft(each, reward)
        if exceeds_threshold(draft, thresholds):
            found.setdefault(draft.key, draft)
    return list(found.values())


def alterations(row: RolloutRow, spec: ActionSpec) -> list[Altered]:
    """Of the last reply, where it was understood. A move among given choices is left: another one may be as good."""
    action = row.actions[-1] if row.actions else None
    if action is None or spec.choices or spec.format == "tool":
        return []
    reply = row.replies[-1]
    spoilt = write_reply(spec, {name: _spoilt(value) for name, value in action.items()})
    return [
        Altered(row, spoilt, True, "the answer was spoilt"),
        Altered(row, f"\n\n{reply}\n\n", False, "blank lines stand around the reply"),
        Altered(row, write_reply(spec, action), False, "the answer stands alone"),
    ]


def _spoilt(value: Any) -> Any:
    """Of the same kind, and wrong."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 13
    if isinstance(value, str):
        return str(int(value) + 13) if value.strip().lstrip("-").isdigit() else f"zq {value[: len(value) // 3]}"
    return value


def _is_violated(altered: Altered, reward: float, thresholds: ThresholdValues) -> bool:
    change = reward - altered.row.reward
    return change > -thresholds["fall"] if altered.is_spoilt else abs(change) > thresholds["hold"]


def _draft(altered: Altered, reward: float) -> FlagDraft:
    row = altered.row
    return flag_rollout(
        SPEC,
        row,
        score=0.8 if altered.is_spoilt else 0.5,
        sentence=f"It earned {row.reward:.3f}, and {reward:.3f} when {altered.how}.",
        marks=whole_reply(row, len(row.replies) - 1),
        cluster=altered.how,
        altered=altered.reply[:500],
    )
