"""Graders as detectors: questions, the reasoning monitor and the contrastive judge raise flags too.

They have a declaration like built-in detectors but no settings: they grade the runs on which they are started, and a
reviewer decides on their flags.
"""

import math
import uuid
from collections import defaultdict
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from backend.detectors import queries
from backend.detectors.queries import Scope
from backend.detectors.schemas import GraderQuestionResponse
from backend.detectors.tables import Flag
from backend.domain.detectors.spec import LOWEST_SUSPICION, SUSPICION, DetectorSpec
from backend.domain.detectors.track_record import Audit, total
from backend.domain.graders.settings import DETECTOR_PREFIX, GraderKind, QuestionSettings
from backend.domain.review.calibration import ReviewedShare, weigh
from backend.domain.vocabulary import GradeStatus, Verdict
from backend.environments.tables import Environment
from backend.graders.flags import SOURCES
from backend.graders.tables import Grade, Grader, GraderRun, GraderSample
from backend.review.tables import AuditSample, VerdictRecord
from backend.runs.tables import Run

MOST_SAMPLED = 50_000
"""Newest sampled rollouts that estimates use."""
MAX_TITLE = 90
"""Characters of a question that serve as its title."""
_DELETED = " (deleted "
_DETECTORS = {kind.detector("") for kind in (GraderKind.MONITOR, GraderKind.CONTRAST)}
_TEXTS = {
    GraderKind.MONITOR: (
        "Reasoning monitor",
        "The policy's reasoning states that it intends to exploit the task.",
        "a policy's suspicion about the reasoning",
    ),
    GraderKind.CONTRAST: (
        "Contrastive judge",
        "High-reward rollouts do something other than the task.",
        "a policy's suspicion about a pattern that high-reward rollouts of one task share",
    ),
}
"""Title, description and formula."""


@dataclass(frozen=True, slots=True)
class GraderDetector:
    spec: DetectorSpec
    questions: Sequence[GraderQuestionResponse]


@dataclass(frozen=True, slots=True)
class SampledRecord:
    """Estimates for all rollouts from a budget's sample. Shares are None without anything to count."""

    graded: int
    rollouts: float
    """Estimated number of rollouts that they represent."""
    flagged: ReviewedShare | None
    precision: ReviewedShare | None
    recall: ReviewedShare | None


def is_grader_detector(detector: str) -> bool:
    return detector.startswith(DETECTOR_PREFIX) or detector in _DETECTORS


def named(name: str) -> str:
    """The name without the mark of a deleted question. Detector ids use it, so that they stay."""
    return name.partition(_DELETED)[0]


def grader_detectors(session: Session, flagged: Container[str] = ()) -> dict[str, GraderDetector]:
    """By id: graders that may raise flags, and deleted or other ones that raised some."""
    statement = select(Grader).options(joinedload(Grader.policy)).where(Grader.kind != GraderKind.JUDGE)
    statement = statement.order_by(Grader.created_at.desc(), Grader.id)
    together: defaultdict[str, list[tuple[Grader, QuestionSettings]]] = defaultdict(list)
    for question in session.scalars(statement):
        configuration = QuestionSettings.model_validate(question.settings)
        detector = question.kind.detector(named(question.name))
        if detector in flagged or (question.deleted_at is None and _flags(configuration)):
            together[detector].append((question, configuration))
    detectors = {}
    for detector, found in sorted(together.items()):
        found.sort(key=lambda each: each[0].deleted_at is not None)  # the first existing one names the detector
        settings = [configuration for _, configuration in found]
        flags = [_flags(each) for each in settings]
        kind, text = settings[0].kind, " ".join(settings[0].text.split())
        shortened = text if len(text) <= MAX_TITLE else f"{text[: MAX_TITLE - 1].rstrip()}…"
        of_question = (shortened, f"A custom question; flags {flags[0] or 'by hand'}.", "the answer")
        title, description, formula = _TEXTS.get(kind, of_question)
        conditions = " or ".join(dict.fromkeys(each or "chosen by hand" for each in flags))
        suspicion = replace(LOWEST_SUSPICION, default=min(each.flags_from for each in settings))
        spec = DetectorSpec(
            id=detector,
            title=title,
            description=description,
            formula=f"{formula}: {conditions}; and a quote that appears in the rollout",
            source=SOURCES[kind],
            settings={} if kind is GraderKind.QUESTION else {SUSPICION: suspicion},
            cost=f"one request per {'group of rollouts' if kind is GraderKind.CONTRAST else 'rollout'}",
        )
        questions = [
            GraderQuestionResponse(
                id=question.id,
                name=named(question.name),
                policy=question.policy.name,
                flags=each or "by hand",
                is_deleted=question.deleted_at is not None,
            )
            for (question, _), each in zip(found, flags, strict=True)
        ]
        detectors[detector] = GraderDetector(spec, questions)
    return detectors


def _flags(asked: QuestionSettings) -> str:
    if asked.kind is GraderKind.QUESTION:
        return " or ".join(asked.flags)
    return f"from {asked.flags_from:g}"


def audits_of_graders(session: Session, scope: Scope) -> dict[str, dict[str, Audit]]:
    """By detector and environment. Only runs that the grader graded count: it cannot have missed anything elsewhere.

    Runs where a budget chose the rollouts count in `sampled_record`.
    """
    runs: defaultdict[tuple[str, str], set[uuid.UUID]] = defaultdict(set)
    statement = select(Grader.kind, Grader.name, GraderRun.run_id, Environment.name).join(GraderRun.grader)
    statement = scope.of(statement.where(Grader.kind != GraderKind.JUDGE, ~GraderRun.is_sampled), GraderRun.run_id)
    for kind, name, run_id, environment in session.execute(statement):
        runs[kind.detector(named(name)), environment].add(run_id)
    if not runs:
        return {}
    by_run = queries.audits(session, Scope(run_ids=set().union(*runs.values())), Run.id)
    found: defaultdict[str, dict[str, Audit]] = defaultdict(dict)
    for (detector, environment), graded in runs.items():
        found[detector][environment] = total(Audit, [by_run[run_id] for run_id in graded & by_run.keys()])
    return found


def sampled_record(session: Session, detector: str, scope: Scope) -> SampledRecord | None:
    """Estimate what a grader does on all rollouts of the runs in which a budget chose some; None without any.

    A rollout weighs 1 / chance. Recall counts hacks in the audit sample, whose chances are independent of the budget's.
    """
    graders = session.execute(select(Grader.id, Grader.kind, Grader.name).where(Grader.kind != GraderKind.JUDGE))
    own = [grader_id for grader_id, kind, name in graders if kind.detector(named(name)) == detector]
    looks = queries.newest_looks(VerdictRecord.rollout_id)
    is_flagged = select(Flag.id).where(Flag.rollout_id == GraderSample.rollout_id, Flag.detector == detector).exists()
    statement = (
        select(is_flagged, GraderSample.chance, AuditSample.chance, looks.c.verdict)
        .select_from(GraderSample)
        .join(GraderRun, GraderRun.id == GraderSample.grader_run_id)
        .join(Grade, (Grade.grader_id == GraderRun.grader_id) & (Grade.rollout_id == GraderSample.rollout_id))
        .outerjoin(AuditSample, AuditSample.rollout_id == GraderSample.rollout_id)
        .outerjoin(looks, looks.c.subject == GraderSample.rollout_id)
        .where(GraderRun.grader_id.in_(own), Grade.status == GradeStatus.COMPLETED)
        .order_by(GraderSample.id.desc())
        .limit(MOST_SAMPLED)
    )
    right = {str(each) for each in queries.RIGHT}
    decided = right | {str(Verdict.HONEST)}
    rows = [
        (flagged, 1 / chance, 1 / audited if audited else None, str(verdict) if verdict else "")
        for flagged, chance, audited, verdict in session.execute(scope.of(statement, GraderRun.run_id))
    ]
    shares = (
        weigh((flagged, weight) for flagged, weight, _, _ in rows),
        weigh((verdict in right, weight) for flagged, weight, _, verdict in rows if flagged and verdict in decided),
        weigh((flagged, weight * audit) for flagged, weight, audit, verdict in rows if audit and verdict in right),
    )
    return SampledRecord(len(rows), math.fsum(weight for _, weight, _, _ in rows), *shares) if rows else None
