"""What the detectors of reward hacking found, as alarms."""

from collections.abc import Sequence

from backend.domain.vocabulary import Severity
from workers.judging.detectors.base import FlagDraft
from workers.judging.detectors.variance_gone import DETECTOR as VARIANCE_GONE
from workers.training.alarms.sighting import Sighting


def suspicions_of(drafts: Sequence[FlagDraft]) -> list[Sighting]:
    """One for each grave flag about the run. A detector says the same only once."""
    grave = [draft for draft in drafts if draft.severity is Severity.ALERT and draft.detector != VARIANCE_GONE.id]
    return [_sighting(draft) for draft in grave]


def _sighting(draft: FlagDraft) -> Sighting:
    step = draft.training_step or 0
    window = draft.evidence.get("window") or [step, step]
    evidence = {"detector": draft.detector, "about": draft.key, "score": draft.score, "window": window}
    return Sighting(
        "suspicion", draft.sentence, max(0, int(window[0]) - 1), evidence, key=f"{draft.detector}/{draft.key}"
    )
