"""All detectors over one run, step by step: inside training as over stored rollouts."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from backend.domain.detectors.settings import InForce, in_force, tuned
from backend.domain.detectors.spec import Face, Need
from backend.domain.detectors.thresholds import Threshold
from workers.detectors.base import FlagDraft, Limits, RolloutDetector, RunDetector
from workers.detectors.environment_context import Scene
from workers.detectors.registry import OF_ROLLOUTS, OF_RUNS
from workers.detectors.view import Examination, RolloutRow, RunView

DETECTORS: tuple[RunDetector | RolloutDetector, ...] = (*OF_RUNS, *OF_ROLLOUTS)

MOST_FLAGS = 20
"""Of one detector about one run: more of the same helps nobody. Rollouts are flagged without a limit."""


class Watch:
    """Keeps what detectors need of a run, and what they have said about it already."""

    def __init__(self, scene: Scene, settings: Mapping[str, InForce] | None = None) -> None:
        self.view = RunView(scene)
        self._untuned = {each.id: in_force(each.face) for each in DETECTORS} | dict(settings or {})
        self.settings: Mapping[str, InForce] = self._untuned
        self._said: set[tuple[str, str]] = set()
        self._counts: Counter[str] = Counter()

    def tune(self, thresholds: Iterable[Threshold]) -> None:
        """With these of the run over what it was made with, from the next look on."""
        self.settings = tuned(self._untuned, thresholds)

    def look(
        self, step: int, rows: Sequence[RolloutRow], ahead: Sequence[FlagDraft] = (), by: Collection[str] = ()
    ) -> list[FlagDraft]:
        """What is new and suspicious after this step, or in this batch of an evaluation. Steps come in their order.

        `ahead`: what the detectors `by` flagged in this step before it was learned; they are not asked again.
        """
        if not rows:
            return []
        self.view.add(step, rows)
        of_run = chain.from_iterable(self._about_run(each) for each in OF_RUNS if self._is_on(each.face))
        others = [each for each in OF_ROLLOUTS if each.id not in by]
        of_rollouts = [*ahead, *chain.from_iterable(self._about_rollouts(each, rows) for each in others)]
        return [*of_run, *(replace(draft, training_step=step) for draft in of_rollouts)]

    def look_ahead(self, rows: Sequence[RolloutRow], by: Collection[str]) -> list[FlagDraft]:
        """What these detectors of rollouts flag in a step that is not over yet. Nothing is remembered of it."""
        asked = [each for each in OF_ROLLOUTS if each.id in by]
        return [draft for each in asked for draft in self._about_rollouts(each, rows)] if rows else []

    def examined(self, examination: Examination) -> None:
        """Held-out tasks were played; the next look takes it into account."""
        self.view.examinations.append(examination)

    def remember(self, said: Iterable[tuple[str, str]]) -> None:
        """These (detector, key) are stored already: a resumed run is not paused again by what a person let pass."""
        for name in set(said) - self._said:
            self._said.add(name)
            self._counts[name[0]] += 1

    def _is_on(self, face: Face) -> bool:
        other = Need.EVALUATION if self.view.scene.has_steps else Need.STEPS
        return self.settings[face.id].enabled and other not in face.needs

    def _limits(self, face: Face) -> Limits:
        return self.settings[face.id].thresholds

    def _about_run(self, detector: RunDetector) -> list[FlagDraft]:
        drafts = []
        for draft in detector.look(self.view, self._limits(detector.face)):
            name = (draft.detector, draft.key)
            if name in self._said or self._counts[detector.id] >= MOST_FLAGS:
                continue
            self._said.add(name)
            self._counts[detector.id] += 1
            drafts.append(self._explained(draft, detector.face))
        return drafts

    def _about_rollouts(self, detector: RolloutDetector, rows: Sequence[RolloutRow]) -> list[FlagDraft]:
        if not self._is_on(detector.face):
            return []
        drafts = detector.look_at(rows, self.view.scene, self._limits(detector.face))
        return [self._explained(draft, detector.face) for draft in drafts]

    def _explained(self, draft: FlagDraft, face: Face) -> FlagDraft:
        how = {"title": face.title, "formula": face.formula, "source": face.source}
        return replace(draft, evidence={**draft.evidence, **how, "thresholds": dict(self._limits(face))})
