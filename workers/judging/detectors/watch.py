"""All detectors over one run, step by step: inside training as over stored rollouts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from workers.judging.detectors import (
    column_divergence,
    early_exit,
    length_shift,
    repeated_text,
    reward_jump,
    template_collapse,
    variance_gone,
)
from workers.judging.detectors.base import Detector, FlagDraft
from workers.judging.detectors.view import RolloutRow, RunView

DETECTORS: tuple[Detector, ...] = (
    reward_jump.DETECTOR,
    column_divergence.DETECTOR,
    repeated_text.DETECTOR,
    length_shift.DETECTOR,
    variance_gone.DETECTOR,
    early_exit.DETECTOR,
    template_collapse.DETECTOR,
)

MOST_FLAGS = 20
"""Of one detector in one run: more of the same helps nobody."""


class Watch:
    """Keeps what detectors need of a run, and what they have said already."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.view = RunView(tuple(columns))
        self._said: set[tuple[str, str]] = set()
        self._counts: Counter[str] = Counter()

    def look(self, step: int, rows: Sequence[RolloutRow]) -> list[FlagDraft]:
        """What is newly suspicious after this step. Steps come in ascending order."""
        if not rows:
            return []
        self.view.add(step, rows)
        drafts = [draft for detector in DETECTORS for draft in self._new(detector)]
        return drafts

    def _new(self, detector: Detector) -> list[FlagDraft]:
        drafts = []
        for draft in detector.look(self.view):
            name = (draft.detector, draft.key)
            if name in self._said or self._counts[detector.id] >= MOST_FLAGS:
                continue
            self._said.add(name)
            self._counts[detector.id] += 1
            how = {"title": detector.title, "formula": detector.formula, "source": detector.source}
            drafts.append(replace(draft, evidence={**draft.evidence, **how, "thresholds": dict(detector.thresholds)}))
        return drafts
