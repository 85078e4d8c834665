"""What detectors found whose flags pause or stop a run."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backend.domain.detectors.flags import FlagDraft
from backend.domain.detectors.spec import Action
from backend.domain.training.alarms import INTERVENTION
from workers.storage.interventions import PATTERNS, title_of
from workers.training.alarms.sighting import Sighting

ENDING = (Action.PAUSE, Action.STOP_AND_ROLL_BACK)
SHOWN = 20
"""Flagged rollouts that an alarm names."""


@dataclass(frozen=True, slots=True)
class Intervening:
    """One detector's flags of a step, and what follows from them."""

    detector: str
    action: Action
    patterns: frozenset[str]
    """Clusters: what was let pass once ends the run no second time."""
    sighting: Sighting


def interventions_of(drafts: Sequence[FlagDraft], actions: Mapping[str, Action]) -> list[Intervening]:
    """One for each detector that ends the run and flagged something."""
    found: defaultdict[str, list[FlagDraft]] = defaultdict(list)
    for draft in drafts:
        if actions.get(draft.detector) in ENDING:
            found[draft.detector].append(draft)
    return [_of_detector(detector, actions[detector], own) for detector, own in found.items()]


def pattern_of(draft: FlagDraft) -> str:
    """Its cluster. Of a flag without one what it is about, whichever step or rollout shows it."""
    if draft.cluster:
        return draft.cluster
    return "a rollout" if draft.rollout_id else re.sub(r"-\d+$", "", draft.key)


def _of_detector(detector: str, action: Action, drafts: Sequence[FlagDraft]) -> Intervening:
    strongest = max(drafts, key=lambda draft: (draft.rollout_id is None, draft.score))
    step = strongest.training_step or 0
    window = strongest.evidence.get("window") or [step, step]
    patterns = frozenset(map(pattern_of, drafts))
    named = dict.fromkeys(str(each) for draft in drafts for each in draft.evidence.get("rollouts") or ())
    evidence = {
        "detector": detector,
        "on_flag": action,
        PATTERNS: sorted(patterns),
        "flags": len(drafts),
        "rollouts": list(named)[:SHOWN],
        "window": window,
    }
    others = f" {len(drafts) - 1} more flags in this step." if len(drafts) > 1 else ""
    sentence = f"{title_of(detector)}: {strongest.sentence}{others}"
    onset = max(0, int(window[0]) - 1)
    return Intervening(detector, action, patterns, Sighting(INTERVENTION, sentence, onset, evidence, key=detector))
