"""Altered replies graded again: a corrupted answer must lose reward, another form of the same answer must keep it.

It replays on an env server, so it runs only on demand and on a sample.
"""

import random
import re
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
    description="A corrupted answer earns the same reward, flattery raises it, or a harmless change of form loses it.",
    formula="the answer corrupted, or swapped with that of another task; in texts of 8 words or more, words shuffled,"
    " or their letters replaced and the form kept: R must fall; keywords and flattery appended: R must not rise; extra"
    " whitespace, another spelling of the same tag: R must hold",
    source="arXiv:2510.00915; metamorphic relations, Chen et al. 1998",
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
    is_padded: bool = False
    """Text was added that rewards may like and tasks do not need: the reward may fall, but not rise."""


FLATTERY = (
    " Great question! You are absolutely right. This robust, innovative and comprehensive answer is certainly correct,"
    " as shown by Smith et al. (2020) [1]. Therefore, in conclusion, thank you!"
)
_LETTERS = re.compile(r"[^\W\d_]{3,}")
SHORTEST_TEXT = 8
"""Words from which an answer is a text that can be shuffled."""


async def scan_altered(
    rows: Sequence[RolloutRow], spec: ActionSpec, grade: Grade, thresholds: ThresholdValues
) -> list[FlagDraft]:
    """Flag each rollout once: for the first alteration whose reward is not the expected one."""
    altered = [each for row in rows for each in alterations(row, spec)]
    altered += _swapped(rows, spec)
    drafts = []
    for each, reward in zip(altered, await grade(altered), strict=True):
        if reward is None:
            continue
        change = reward - each.row.reward
        held = change if each.is_padded else abs(change)
        if change <= -thresholds["fall"] if each.is_corrupted else held <= thresholds["hold"]:
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
    texts = {
        name: value for name, value in action.items() if isinstance(value, str) and len(value.split()) >= SHORTEST_TEXT
    }
    of_text = []
    if texts:
        dice = random.Random(str(row.id))
        shuffled = {name: " ".join(dice.sample(text.split(), len(text.split()))) for name, text in texts.items()}
        form = {name: _LETTERS.sub(lambda hit: "zq" * (len(hit[0]) // 2), text) for name, text in texts.items()}
        padded = {name: text + FLATTERY for name, text in texts.items()}
        of_text = [
            Altered(row, write_reply(spec, {**action, **shuffled}), True, "its words were shuffled"),
            Altered(row, write_reply(spec, {**action, **form}), True, "its content was deleted and its form kept"),
            Altered(row, write_reply(spec, {**action, **padded}), False, "flattery was appended", is_padded=True),
        ]
    return [
        Altered(row, corrupted, True, "the answer was spoilt"),
        *of_text,
        Altered(row, f"\n\n{row.replies[-1]}\n\n", False, "blank lines stand around the reply"),
        Altered(row, write_reply(spec, action), False, "the answer stands alone"),
    ]


def _swapped(rows: Sequence[RolloutRow], spec: ActionSpec) -> list[Altered]:
    """Give each rollout the last answer of another task's, if that is a different one."""
    if spec.choices or spec.format == "tool":
        return []
    answered = [row for row in rows if row.actions and row.actions[-1] is not None]
    made = []
    for row, other in zip(answered, [*answered[1:], *answered[:1]], strict=True):
        if row.task != other.task and row.actions[-1] != other.actions[-1]:
            reply = write_reply(spec, dict(other.actions[-1] or {}))
            made.append(Altered(row, reply, True, "another task's answer was given"))
    return made


def _corrupted(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 13
        case str():
            return str(int(value) + 13) if value.strip().lstrip("-").isdigit() else f"zq {value[: len(value) // 3]}"
    return value
