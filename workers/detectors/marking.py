"""What the detectors of rollouts share: a draft about one rollout, spans, clusters, and statistics of a batch."""

import hashlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from backend.domain.detectors.spec import Face
from backend.domain.vocabulary import Severity
from workers.detectors.base import FlagDraft, bounded
from workers.detectors.environment_context import Scene
from workers.detectors.view import RolloutRow

EXCERPT = 80
MOST_SPANS = 20
"""Of one rollout: more would only hide the text."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Characters of a reply that show the pattern."""

    turn: int
    start: int
    end: int


def draft_about(
    face: Face,
    row: RolloutRow,
    *,
    score: float,
    sentence: str,
    marks: Sequence[Mark] = (),
    cluster: str,
    severity: Severity = Severity.WARNING,
    **facts: Any,
) -> FlagDraft:
    evidence: dict[str, Any] = {"rollouts": [str(row.id)], "reward": row.reward, **facts}
    if marks:
        first = marks[0]
        spans = [{"turn": mark.turn, "start": mark.start, "end": mark.end} for mark in marks[:MOST_SPANS]]
        evidence |= {"spans": spans, "excerpt": row.replies[first.turn][first.start : first.end][:EXCERPT]}
    return FlagDraft(
        detector=face.id,
        key=str(row.id),
        severity=severity,
        score=bounded(score),
        sentence=sentence,
        evidence=evidence,
        rollout_id=row.id,
        cluster=cluster[:200],
    )


def whole_reply(row: RolloutRow, turn: int) -> list[Mark]:
    return [Mark(turn, 0, len(row.replies[turn]))] if row.replies else []


def paid(rows: Sequence[RolloutRow], scene: Scene) -> set[str]:
    """Ids of those that earn at least what all earn in the mean, and more than the least there is."""
    mean = statistics.fmean(row.reward for row in rows)
    return {str(row.id) for row in rows if row.reward >= mean and (scene.lowest is None or row.reward > scene.lowest)}


def worth_saying(
    found: Sequence[RolloutRow], rows: Sequence[RolloutRow], earning: set[str], common: float
) -> Sequence[RolloutRow]:
    """What more than the `common` share of a batch does without pay is a policy that cannot write yet."""
    if len(found) <= max(1.0, common * len(rows)):
        return found
    return [row for row in found if str(row.id) in earning]


def fingerprint(*texts: str) -> str:
    """Alike for texts that differ in case and blanks only."""
    normalised = "\n".join(" ".join(text.lower().split()) for text in texts)
    return hashlib.sha256(normalised.encode("utf-8", "replace")).hexdigest()[:16]
