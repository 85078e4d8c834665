"""How verdicts and detector flags act on a run while it trains.

- A rollout that repeats, reply by reply, an episode that was judged a hack is masked from the gradient.
- A rollout flagged by a detector with the action `screen` stays out of the gradient until someone reviews it.
  Detectors of rollouts scan the step before it is learned. Other flags act on repeats of the rollouts that they name.
- Flags of detectors with other actions raise alarms, which may end the run.
"""

import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from backend.core.session import transaction
from backend.domain.detectors.catalogue.variance_gone import SPEC as VARIANCE_GONE
from backend.domain.detectors.registry import ROLLOUT_DETECTORS
from backend.domain.detectors.run_view import RolloutRow as DetectorRow
from backend.domain.detectors.run_view import row_of
from backend.domain.detectors.spec import Action, FlagDraft
from backend.domain.notifications.notices import MOST_EXAMPLES
from backend.domain.rollouts.rollout import Rollout
from backend.domain.text import plain_text
from backend.domain.training.alarms import INTERVENTION
from backend.domain.vocabulary import Severity, Verdict
from backend.review.tables import VerdictRecord
from backend.rollouts.tables import Group, Task
from backend.rollouts.tables import Rollout as RolloutRow
from workers.detectors.scanner import RunScanner
from workers.storage.rollouts import rollout_id
from workers.storage.steering import PATTERNS, ScreenedRollouts, flagged_by, title_of
from workers.training.alarms import Sighting
from workers.training.grpo_batch import SCREENED

WRONG = frozenset({Verdict.HACK, Verdict.BROKEN_REWARD})  # verdicts on rewards that must not be learned from
ENDING = (Action.PAUSE, Action.STOP_AND_ROLL_BACK)
MOST_NAMED = 20
SCANS_AHEAD = frozenset(detector.id for detector in ROLLOUT_DETECTORS)

EpisodeKey = tuple[str, ...]  # a task and every reply in it. Episodes with equal keys did the same.
DetectorActions = Callable[[], Mapping[str, Action]]  # the action of each enabled detector in the current step


@dataclass(slots=True)
class Verdicts:
    """Verdicts on rollouts of these environment versions, from all runs.

    GRPO learns only from new rollouts, so a verdict acts on later ones that do the same in the same task. The latest
    verdict counts as soon as it is given. `unsure` changes nothing.
    """

    version_ids: Sequence[uuid.UUID]
    _keys: dict[uuid.UUID, EpisodeKey] = field(default_factory=dict)

    def wrongly_rewarded(self, rollouts: Sequence[Rollout]) -> set[int]:
        """Return the positions of rollouts that repeat a hack or a wrongly rewarded episode."""
        with transaction() as session:
            judged = self._judged(session)
            wrong = self.keys_of(session, [id_ for id_, verdict in judged.items() if verdict in WRONG])
        return self.positions(rollouts, wrong)

    def honest(self, rollouts: Sequence[Rollout]) -> set[int]:
        """Return the positions of rollouts that repeat an honest episode that was never judged wrong."""
        with transaction() as session:
            judged = self._judged(session)
            wrong = self.keys_of(session, [id_ for id_, verdict in judged.items() if verdict in WRONG])
            honest = self.keys_of(session, [id_ for id_, verdict in judged.items() if verdict == Verdict.HONEST])
        return self.positions(rollouts, honest - wrong)

    def positions(self, rollouts: Sequence[Rollout], keys: Collection[EpisodeKey]) -> set[int]:
        if not keys:
            return set()
        return {position for position, rollout in enumerate(rollouts) if self.key_of(rollout) in keys}

    def key_of(self, rollout: Rollout) -> EpisodeKey:
        task = rollout.task
        replies = (plain_text(step.reply) for step in rollout.steps)
        version_id = task.version_id or self.version_ids[0]
        return (str(version_id), str(task.split), str(task.index), str(task.seed), *replies)

    def keys_of(self, session: Session, rollout_ids: Collection[uuid.UUID]) -> set[EpisodeKey]:
        if unknown := set(rollout_ids) - self._keys.keys():
            statement = (
                select(RolloutRow.id, RolloutRow.steps, Task)
                .join(Group, Group.id == RolloutRow.group_id)
                .join(Task, Task.id == Group.task_id)
                .where(RolloutRow.id.in_(unknown))
            )
            for id_, steps, task in session.execute(statement):
                place = (str(task.version_id), str(task.split), str(task.index), str(task.seed))
                self._keys[id_] = (*place, *(step["reply"] for step in steps))
        return {self._keys[rollout] for rollout in rollout_ids if rollout in self._keys}

    def _judged(self, session: Session) -> dict[uuid.UUID, Verdict]:
        """Return the latest verdict on each rollout, except `unsure`."""
        latest = (
            select(VerdictRecord.rollout_id, VerdictRecord.verdict)
            .join(RolloutRow, RolloutRow.id == VerdictRecord.rollout_id)
            .join(Group, Group.id == RolloutRow.group_id)
            .join(Task, Task.id == Group.task_id)
            .where(Task.version_id.in_(self.version_ids))
            .where(VerdictRecord.taken_back_at.is_(None), VerdictRecord.verdict != Verdict.UNSURE)
            .order_by(VerdictRecord.rollout_id, VerdictRecord.created_at.desc(), VerdictRecord.id.desc())
            .ext(distinct_on(VerdictRecord.rollout_id))
        )
        return {row.rollout_id: row.verdict for row in session.execute(latest)}


@dataclass(slots=True)
class _ScreenedStep:
    step: int = 0
    ahead_by: frozenset[str] = frozenset()  # detectors that scan this step before it is learned
    ahead: dict[tuple[str, str], FlagDraft] = field(default_factory=dict)  # flags of this step by detector and key
    reasons: defaultdict[uuid.UUID, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Flagged rollouts of this step → detectors."""
    flagged_before: dict[EpisodeKey, set[str]] = field(default_factory=dict)
    """Episodes flagged in earlier steps → detectors."""


@dataclass(slots=True)
class Screening:
    """Screens the rollouts of one GRPO step at a time."""

    run_id: uuid.UUID
    scanner: RunScanner
    verdicts: Verdicts
    actions: DetectorActions
    environments: Mapping[uuid.UUID | None, str] = field(default_factory=dict)
    """Names by the version that tasks carry, for runs with several environments."""

    _now: _ScreenedStep = field(default_factory=_ScreenedStep)

    def screened(self, step: int, rollouts: Sequence[Rollout]) -> set[int]:
        """Return the positions of flagged rollouts, except repeats of episodes judged honest.

        Called again in the same step after groups were replaced. A rollout flagged once stays flagged.
        """
        if step != self._now.step:
            self._now = _ScreenedStep(step)
            screening = {name for name, action in self.actions().items() if action is Action.SCREEN}
            self._now.ahead_by = frozenset(screening & SCANS_AHEAD)
            if earlier := flagged_by(self.run_id, screening - SCANS_AHEAD, before_step=step):
                with transaction() as session:
                    for id_, detectors in earlier.items():
                        for key in self.verdicts.keys_of(session, {id_}):
                            self._now.flagged_before.setdefault(key, set()).update(detectors)
        ids = [rollout_id(self.run_id, rollout) for rollout in rollouts]
        for draft in self.scanner.scan_ahead(self.rows(ids, rollouts), self._now.ahead_by):
            self._now.ahead.setdefault((draft.detector, draft.key), draft)
            if draft.rollout_id is not None:
                self._now.reasons[draft.rollout_id].add(draft.detector)
        for position in self.verdicts.positions(rollouts, self._now.flagged_before.keys()):
            self._now.reasons[ids[position]].update(self._now.flagged_before[self.verdicts.key_of(rollouts[position])])
        flagged = {position for position, id_ in enumerate(ids) if id_ in self._now.reasons}
        return flagged - self.verdicts.honest(rollouts) if flagged else flagged

    def rows(self, ids: Sequence[uuid.UUID], rollouts: Sequence[Rollout]) -> list[DetectorRow]:
        """Return the detectors' view of the completed rollouts."""
        names = (self.environments.get(rollout.task.version_id, "") for rollout in rollouts)
        rows = [row_of(*each) for each in zip(ids, rollouts, names, strict=True)]
        return [row for row in rows if row is not None]

    def scan(self, step: int, rows: Sequence[DetectorRow]) -> list[FlagDraft]:
        """Return all flags of the step, after it was learned."""
        if step != self._now.step:
            self._now = _ScreenedStep(step)
        return self.scanner.scan(step, rows, list(self._now.ahead.values()), self._now.ahead_by)

    def interventions(self, rollouts: Sequence[Rollout], drafts: Sequence[FlagDraft]) -> list[ScreenedRollouts]:
        """Return, by detector, the rollouts that the step kept out of the gradient.

        Includes detectors of runs that flagged this step: repeats of the rollouts that they name are screened later.
        """
        kept: defaultdict[str, list[uuid.UUID]] = defaultdict(list)
        for rollout in rollouts:
            if SCREENED in rollout.metrics:
                id_ = rollout_id(self.run_id, rollout)
                for detector in self._now.reasons[id_]:
                    kept[detector].append(id_)
        screened = {}
        for detector, ids in kept.items():
            draft = self._now.ahead.get((detector, str(ids[0])))
            seen = draft.sentence if draft else "It repeats, reply by reply, an episode that was flagged before."
            sentence = f"{len(ids)} of {len(rollouts)} rollouts."
            screened[detector] = ScreenedRollouts(detector, len(ids), sentence, tuple(ids[:MOST_EXAMPLES]), seen)
        actions = self.actions()
        for draft in drafts:
            if draft.rollout_id is not None or actions.get(draft.detector) is not Action.SCREEN:
                continue
            named = [uuid.UUID(str(each)) for each in draft.evidence.get("rollouts") or ()]
            effect = (
                f"Repeats of the {len(named)} rollouts that it names stay out of the gradient."
                if named
                else "It names no rollouts to screen."
            )
            sentence = f"{title_of(draft.detector)}: {draft.sentence} {effect}"
            if (known := screened.get(draft.detector)) is not None:
                screened[draft.detector] = replace(known, sentence=f"{known.sentence} {sentence}")
            else:
                examples = tuple(named[:MOST_EXAMPLES])
                screened[draft.detector] = ScreenedRollouts(draft.detector, 0, sentence, examples)
        return list(screened.values())


def suspicions_of(drafts: Sequence[FlagDraft], elsewhere: Collection[str] = ()) -> list[Sighting]:
    """Return an alarm for each severe flag, except those of detectors in `elsewhere`, which end the run themselves."""
    silent = {VARIANCE_GONE.id, *elsewhere}
    sightings = []
    for draft in drafts:
        if draft.severity is Severity.ALERT and draft.detector not in silent:
            step = draft.training_step or 0
            window = draft.evidence.get("window") or [step, step]
            evidence = {"detector": draft.detector, "about": draft.key, "score": draft.score, "window": window}
            key, onset = f"{draft.detector}/{draft.key}", max(0, int(window[0]) - 1)
            sightings.append(Sighting("suspicion", draft.sentence, onset, evidence, key))
    return sightings


@dataclass(frozen=True, slots=True)
class DetectorIntervention:
    """The flags of one detector that end the run."""

    detector: str
    action: Action
    patterns: frozenset[str]  # flagged clusters. A pattern that someone let pass does not end the run again.
    sighting: Sighting


def interventions_of(drafts: Sequence[FlagDraft], actions: Mapping[str, Action]) -> list[DetectorIntervention]:
    """Return one intervention per detector that flagged the step and whose action ends the run."""
    flags: defaultdict[str, list[FlagDraft]] = defaultdict(list)
    for draft in drafts:
        if actions.get(draft.detector) in ENDING:
            flags[draft.detector].append(draft)
    interventions = []
    for detector, own in flags.items():
        strongest = max(own, key=lambda draft: (draft.rollout_id is None, draft.score))
        step = strongest.training_step or 0
        window = strongest.evidence.get("window") or [step, step]
        patterns = frozenset(map(pattern_of, own))
        named = dict.fromkeys(str(each) for draft in own for each in draft.evidence.get("rollouts") or ())
        evidence = {
            "detector": detector,
            "on_flag": actions[detector],
            PATTERNS: sorted(patterns),
            "flags": len(own),
            "rollouts": list(named)[:MOST_NAMED],
            "window": window,
        }
        others = f" {len(own) - 1} more flags in this step." if len(own) > 1 else ""
        sentence = f"{title_of(detector)}: {strongest.sentence}{others}"
        sighting = Sighting(INTERVENTION, sentence, max(0, int(window[0]) - 1), evidence, key=detector)
        interventions.append(DetectorIntervention(detector, actions[detector], patterns, sighting))
    return interventions


def pattern_of(draft: FlagDraft) -> str:
    """Return the flag's cluster, or the kind of its subject if it has none."""
    if draft.cluster:
        return draft.cluster
    return "a rollout" if draft.rollout_id else re.sub(r"-\d+$", "", draft.key)
