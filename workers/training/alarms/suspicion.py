"""What the detectors of reward hacking found, as alarms."""

from collections.abc import Collection, Sequence

from backend.domain.detectors.catalogue.variance_gone import DETECTOR as VARIANCE_GONE
from backend.domain.detectors.flags import FlagDraft
from backend.domain.vocabulary import Severity
from workers.training.alarms.sighting import Sighting


def suspicions_of(drafts: Sequence[FlagDraft], elsewhere: Collection[str] = ()) -> list[Sighting]:
    """One for each grave flag about the run. A detector says the same only once. `elsewhere`: detectors whose flags
    end the run by themselves."""
    silent = {VARIANCE_GONE.id, *elsewhere}
    grave = [draft for draft in drafts if draft.severity is Severity.ALERT and draft.detector not in silent]
    return [_sighting(draft) for draft in grave]


def _sighting(draft: FlagDraft) -> Sighting:
    step = draft.training_step or 0
    window = draft.evidence.get("window") or [step, step]
    evidence = {"detector": draft.detector, "about": draft.key, "score": draft.score, "window": window}
    return Sighting(
        "suspicion", draft.sentence, max(0, int(window[0]) - 1), evidence, key=f"{draft.detector}/{draft.key}"
    )
