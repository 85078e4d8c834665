"""All detectors over one run, step by step: inside training and over stored rollouts."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from backend.domain.detectors.registry import ROLLOUT_DETECTORS, RUN_DETECTORS, SPECS
from backend.domain.detectors.run_view import Batch, EnvironmentContext, HeldoutResult, RolloutRow, RunView
from backend.domain.detectors.settings import ActiveSettings, Threshold, override_thresholds, resolve_settings
from backend.domain.detectors.spec import DetectorSpec, FlagDraft, Need

MAX_FLAGS = 20
"""Per detector about one run. Flags about rollouts are not limited."""


class RunScanner:
    """Keeps what detectors need of a run, and which flags they have raised already."""

    def __init__(self, context: EnvironmentContext, settings: Mapping[str, ActiveSettings] | None = None) -> None:
        self.view = RunView(context)
        defaults = {name: resolve_settings(spec) for name, spec in SPECS.items()}
        self._base_settings = defaults | dict(settings or {})
        self.settings: Mapping[str, ActiveSettings] = self._base_settings
        self._raised: set[tuple[str, str]] = set()
        self._counts: Counter[str] = Counter()

    def tune(self, thresholds: Iterable[Threshold]) -> None:
        """Use these thresholds of the run on top of the environment's, from the next scan."""
        self.settings = override_thresholds(self._base_settings, thresholds)

    def scan(
        self, step: int, rows: Sequence[RolloutRow], ahead: Sequence[FlagDraft] = (), by: Collection[str] = ()
    ) -> list[FlagDraft]:
        """Return new flags after a training step or a batch of an evaluation. Steps come in ascending order.

        `ahead`: flags that the detectors `by` raised before this step was learned; these detectors do not run again.
        """
        if not rows:
            return []
        self.view.add(step, rows)
        about_run = []
        for detector in RUN_DETECTORS:
            if not self._is_active(detector.spec):
                continue
            for draft in detector.detect(self.view, self.settings[detector.id].thresholds):
                name = (draft.detector, draft.key)
                if name not in self._raised and self._counts[detector.id] < MAX_FLAGS:
                    self._raised.add(name)
                    self._counts[detector.id] += 1
                    about_run.append(draft)
        about_rollouts = [*ahead, *self.scan_ahead(rows, SPECS.keys() - by)]
        return [*about_run, *(replace(draft, training_step=step) for draft in about_rollouts)]

    def scan_ahead(self, rows: Sequence[RolloutRow], by: Collection[str]) -> list[FlagDraft]:
        """Return what these detectors flag in a step that has not been learned yet. Nothing of it is remembered."""
        if not rows:
            return []
        batch = Batch(rows, self.view.context)
        chosen = [each for each in ROLLOUT_DETECTORS if each.id in by and self._is_active(each.spec)]
        return [draft for each in chosen for draft in each.detect(batch, self.settings[each.id].thresholds)]

    def add_heldout(self, result: HeldoutResult) -> None:
        self.view.heldout.append(result)

    def skip_raised(self, raised: Iterable[tuple[str, str]]) -> None:
        """These (detector, key) are stored: a resumed run does not pause again for a flag that a person dismissed."""
        for name in set(raised) - self._raised:
            self._raised.add(name)
            self._counts[name[0]] += 1

    def _is_active(self, spec: DetectorSpec) -> bool:
        other_kind = Need.EVALUATION if self.view.context.has_steps else Need.STEPS
        return self.settings[spec.id].enabled and other_kind not in spec.needs
