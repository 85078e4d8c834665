"""Confirmed patterns of a training run, their known onsets, and the last checkpoint before any of them."""

import uuid
from collections import Counter, defaultdict
from dataclasses import dataclass
from statistics import median_low

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.detectors.tables import Flag
from backend.domain.detectors.registry import SPECS
from backend.domain.detectors.spec import Need, Subject
from backend.domain.studies.onset import OnsetOutcome
from backend.domain.studies.study import OnsetResult, OnsetSettings, StudyKind
from backend.domain.vocabulary import Phase, Verdict
from backend.review.judged_curves import judgements_of
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.tables import Run
from backend.studies.queries import checkpoints_until, start_of
from backend.studies.schemas import PatternResponse
from backend.studies.tables import Study

CONFIRMING = frozenset({Verdict.HACK, Verdict.BROKEN_REWARD})
"""Verdicts that confirm a pattern."""


class ConfirmedPattern(PatternResponse):
    middle_step: int
    version_id: uuid.UUID
    """The environment version of most confirmed rollouts."""


@dataclass(frozen=True, slots=True)
class KnownOnset:
    study_id: uuid.UUID
    settings: OnsetSettings
    low: int
    """Step of the last checkpoint at the base rate."""
    high: int


def patterns_of(session: Session, run: Run) -> list[ConfirmedPattern]:
    """Detectors with a confirmed rollout and each of their clusters with one, most confirmed rollouts first."""
    judgements = judgements_of(session, run.id)
    confirmed = {rollout_id for rollout_id, judgement in judgements.items() if judgement.verdict in CONFIRMING}
    if not confirmed:
        return []
    of_confirmed = (
        select(Flag.detector, Flag.cluster, Rollout.training_step, Task.version_id)
        .join(Rollout, Rollout.id == Flag.rollout_id)
        .join(Group, Group.id == Rollout.group_id)
        .join(Task, Task.id == Group.task_id)
        .where(Flag.run_id == run.id, Flag.rollout_id.in_(confirmed))
    )
    steps: defaultdict[tuple[str, str | None], list[int]] = defaultdict(list)
    versions: defaultdict[tuple[str, str | None], list[uuid.UUID]] = defaultdict(list)
    for detector, cluster, step, version_id in session.execute(of_confirmed):
        for key in {(detector, None), (detector, cluster)}:
            steps[key].append(step or 0)
            versions[key].append(version_id)
    counts = select(Flag.detector, Flag.cluster, func.count()).where(
        Flag.run_id == run.id, Flag.rollout_id.is_not(None)
    )
    flagged: Counter[tuple[str, str | None]] = Counter()  # a detector flags a rollout once
    for detector, cluster, count in session.execute(counts.group_by(Flag.detector, Flag.cluster)):
        for key in {(detector, None), (detector, cluster)}:
            flagged[key] += count
    patterns = []
    for (detector, cluster), found in steps.items():
        spec, obstacle = SPECS.get(detector), ""
        if spec is None:
            obstacle = "A grader found this pattern and would have to grade every sampled rollout."
        elif spec.subject is Subject.RUN:
            obstacle = "This detector reads curves, not rollouts. Search for a pattern of rollouts with the same hack."
        elif Need.SANDBOX in spec.needs:
            obstacle = "This detector runs submissions in the sandbox and works on demand only."
        elif Need.REPLAY in spec.needs:
            obstacle = "This detector replays altered replies and runs on demand only."
        pattern = ConfirmedPattern(
            detector=detector,
            cluster=cluster,
            title=pattern_name(detector, cluster),
            flagged=flagged[detector, cluster],
            confirmed=len(found),
            first_step=min(found),
            middle_step=median_low(found),
            version_id=max(versions[detector, cluster], key=versions[detector, cluster].count),
            obstacle=obstacle,
        )
        patterns.append(pattern)
    return sorted(patterns, key=lambda each: (-each.confirmed, each.detector, each.cluster or ""))


def known_onsets(session: Session, run_id: uuid.UUID) -> list[KnownOnset]:
    """The latest study of each pattern that found an onset, earliest onset first."""
    has_onset = Study.result["hacking_step"].astext.is_not(None)
    statement = select(Study).where(Study.run_id == run_id, Study.kind == StudyKind.ONSET, has_onset)
    latest: dict[tuple[str, str | None], KnownOnset] = {}
    for study in session.scalars(statement.order_by(Study.id)):
        settings, result = study.onset_settings, study.onset_result
        if result is not None and result.hacking_step is not None:
            onset = KnownOnset(study.id, settings, result.honest_step or 0, result.hacking_step)
            latest[settings.detector, settings.cluster] = onset
    return sorted(latest.values(), key=lambda each: (each.high, each.study_id))


def last_honest_checkpoint(session: Session, run: Run, *, detector: str | None = None) -> Checkpoint | None:
    """The newest checkpoint of a training run with weights before the first sign of a hack.

    The first sign is the earliest known onset; for confirmed patterns without one, the first confirmed rollout; without
    any verdict, the first flag, of `detector` if given. Weights that played a hack are not honest: the checkpoint of
    step c plays step c + 1. If no checkpoint is before it, returns the policy that GRPO started from. Returns None if
    its weights were deleted, or without any sign.
    """
    onsets = known_onsets(session, run.id)
    judgements = judgements_of(session, run.id)
    confirmed = {rollout_id for rollout_id, judgement in judgements.items() if judgement.verdict in CONFIRMING}
    if confirmed:
        for onset in onsets:  # its single rollouts before the onset are the base rate
            explained = select(Flag.rollout_id).where(Flag.run_id == run.id, Flag.detector == onset.settings.detector)
            if onset.settings.cluster is not None:
                explained = explained.where(Flag.cluster == onset.settings.cluster)
            confirmed = confirmed.difference(session.scalars(explained))
        in_training = Rollout.run_id == run.id, Rollout.phase == Phase.TRAIN, Rollout.id.in_(confirmed)
        first_sign = session.scalar(select(func.min(Rollout.training_step)).where(*in_training))
    elif onsets:
        first_sign = None
    else:
        flags = select(func.min(Flag.training_step)).where(Flag.run_id == run.id)
        if detector is not None:
            flags = flags.where(Flag.detector == detector)
        honest = {rollout_id for rollout_id, judgement in judgements.items() if judgement.verdict is Verdict.HONEST}
        if honest:
            flags = flags.where(Flag.rollout_id.is_(None) | Flag.rollout_id.not_in(honest))
        first_sign = session.scalar(flags)
    ends = [onset.low for onset in onsets]
    if first_sign is not None:
        ends.append(max(0, first_sign - 2))
    if not ends:
        return None
    before = checkpoints_until(session, run.id, min(ends))
    return before[-1] if before else start_of(session, run)


def pattern_name(detector: str, cluster: str | None) -> str:
    spec = SPECS.get(detector)
    name = spec.title if spec else detector
    return f"{name} ({cluster})" if cluster else name


def describe_onset(result: OnsetResult | None) -> str:
    if result is None:
        return "not known yet"
    match result.outcome:
        case OnsetOutcome.FOUND:
            return f"between step {result.honest_step} and step {result.hacking_step}"
        case OnsetOutcome.AT_THE_FIRST:
            return f"before the first checkpoint, step {result.hacking_step}"
        case OnsetOutcome.NOT_SEEN:
            return "not seen in any sampled checkpoint"
