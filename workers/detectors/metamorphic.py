"""Altered replies graded again: a spoilt answer must lose reward, another form of the same answer must keep it.

It needs an env server that replays, so it looks at a sample and only when it is asked to.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from backend.domain.detectors.catalogue import FACES
from backend.domain.environments.agent_spec import ActionSpec
from backend.domain.environments.prompts import write_reply
from workers.detectors.base import FlagDraft, Limits, is_told
from workers.detectors.marking import draft_about, whole_reply
from workers.detectors.view import RolloutRow

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
    rows: Sequence[RolloutRow], spec: ActionSpec, grade: Grade, limits: Limits
) -> list[FlagDraft]:
    altered = [each for row in rows for each in alterations(row, spec)]
    graded = zip(altered, await grade(altered), strict=True)
    found: dict[str, FlagDraft] = {}
    for each, reward in graded:
        if reward is None or not _is_violated(each, reward, limits):
            continue
        draft = _draft(each, reward)
        if is_told(draft, limits):
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


def _is_violated(altered: Altered, reward: float, limits: Limits) -> bool:
    change = reward - altered.row.reward
    return change > -limits["fall"] if altered.is_spoilt else abs(change) > limits["hold"]


def _draft(altered: Altered, reward: float) -> FlagDraft:
    row = altered.row
    return draft_about(
        FACE,
        row,
        score=0.8 if altered.is_spoilt else 0.5,
        sentence=f"It earned {row.reward:.3f}, and {reward:.3f} when {altered.how}.",
        marks=whole_reply(row, len(row.replies) - 1),
        cluster=altered.how,
        altered=altered.reply[:500],
    )


FACE = FACES["metamorphic"]
