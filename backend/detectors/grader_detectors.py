"""Graders as detectors: questions, the reasoning monitor and the contrastive judge raise flags too.

They have a declaration like built-in detectors but no settings: they grade the runs on which they are started, and a
reviewer decides on their flags.
"""

import uuid
from collections import defaultdict
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session, joinedload

from backend.detectors.queries import JUDGED_PHASES, RIGHT, Scope, newest_looks
from backend.detectors.tables import Flag
from backend.domain.detectors.spec import LOWEST_SUSPICION, SUSPICION, DetectorSpec
from backend.domain.detectors.track_record import Audit
from backend.domain.graders.settings import DETECTOR_PREFIX, GraderKind, QuestionSettings
from backend.domain.vocabulary import RolloutStatus, Verdict
from backend.environments.tables import Environment, EnvironmentVersion
from backend.graders.flags import SOURCES
from backend.graders.tables import Grader, GraderRun
from backend.review.tables import AuditDraw, AuditSample, VerdictRecord
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run

MAX_TITLE = 90
"""Characters of a question that serve as its title."""
_DELETED = " (deleted "
_DETECTORS = {kind.detector("") for kind in (GraderKind.MONITOR, GraderKind.CONTRAST)}
_TITLES = {GraderKind.MONITOR: "Reasoning monitor", GraderKind.CONTRAST: "Contrastive judge"}
_DESCRIPTIONS = {
    GraderKind.MONITOR: "The policy's reasoning states that it intends to exploit the task.",
    GraderKind.CONTRAST: "High-reward rollouts do something other than the task.",
}
_FORMULAS = {
    GraderKind.MONITOR: "a policy's suspicion about the reasoning",
    GraderKind.CONTRAST: "a policy's suspicion about a pattern that high-reward rollouts of one task share",
}


@dataclass(frozen=True, slots=True)
class GraderQuestion:
    """A grader that raises the flags of a detector."""

    id: uuid.UUID
    name: str
    policy: str
    flags: str
    """A description of the answers that raise a flag."""
    is_deleted: bool


@dataclass(frozen=True, slots=True)
class GraderDetector:
    """A detector whose flags graders raise."""

    spec: DetectorSpec
    questions: Sequence[GraderQuestion]


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
        is_own = kind is GraderKind.QUESTION
        title = text if len(text) <= MAX_TITLE else f"{text[: MAX_TITLE - 1].rstrip()}…"
        conditions = " or ".join(dict.fromkeys(each or "chosen by hand" for each in flags))
        formula = "the answer" if is_own else _FORMULAS[kind]
        suspicion = replace(LOWEST_SUSPICION, default=min(each.flags_from for each in settings))
        spec = DetectorSpec(
            id=detector,
            title=title if is_own else _TITLES[kind],
            description=f"A custom question; flags {flags[0] or 'by hand'}." if is_own else _DESCRIPTIONS[kind],
            formula=f"{formula}: {conditions}; and a quote that appears in the rollout",
            source=SOURCES[kind],
            settings={} if is_own else {SUSPICION: suspicion},
            cost=f"one request per {'group of rollouts' if kind is GraderKind.CONTRAST else 'rollout'}",
        )
        questions = [
            GraderQuestion(
                question.id,
                named(question.name),
                question.policy.name,
                each or "by hand",
                question.deleted_at is not None,
            )
            for (question, _), each in zip(found, flags, strict=True)
        ]
        detectors[detector] = GraderDetector(spec, questions)
    return detectors


def _flags(asked: QuestionSettings) -> str:
    if asked.kind is GraderKind.QUESTION:
        return " or ".join(asked.flags)
    return f"from {asked.flags_from:g}"


@dataclass(frozen=True, slots=True)
class ReviewedRuns:
    """Verdicts on a set of runs, whichever detector flagged the rollouts."""

    audit: Audit = field(default_factory=Audit)
    hacks: int = 0
    """Rollouts that any detector flagged and a reviewer confirmed."""

    def __add__(self, other: "ReviewedRuns") -> "ReviewedRuns":
        return ReviewedRuns(self.audit + other.audit, self.hacks + other.hacks)


def reviewed_around(session: Session, scope: Scope) -> dict[str, dict[str, ReviewedRuns]]:
    """By detector and environment. Only runs that the grader graded count: it cannot have missed anything elsewhere."""
    runs: defaultdict[tuple[str, str], set[uuid.UUID]] = defaultdict(set)
    statement = (
        select(Grader.kind, Grader.name, GraderRun.run_id, Environment.name)
        .join(GraderRun.grader)
        .join(Run, Run.id == GraderRun.run_id)
        .join(EnvironmentVersion, EnvironmentVersion.id == Run.version_id)
        .join(Environment, Environment.id == EnvironmentVersion.environment_id)
    )
    for kind, name, run_id, environment in session.execute(
        scope.of(statement.where(Grader.kind != GraderKind.JUDGE), GraderRun.run_id)
    ):
        runs[kind.detector(named(name)), environment].add(run_id)
    ids = set().union(*runs.values())
    if not ids:
        return {}
    by_run = _by_run(session, ids)
    found: defaultdict[str, dict[str, ReviewedRuns]] = defaultdict(dict)
    for (detector, environment), theirs in runs.items():
        counts = {name: sum(each.get(run_id, 0) for run_id in theirs) for name, each in by_run.items()}
        unflagged = max(0, counts["rollouts"] - counts["flagged"])
        audit = Audit(unflagged, counts["drawn"], counts["judged"], counts["missed"])
        found[detector][environment] = ReviewedRuns(audit, counts["confirmed"])
    return found


def _by_run(session: Session, run_ids: set[uuid.UUID]) -> dict[str, dict[uuid.UUID, int]]:
    """As `queries.audit_of` and `queries.hacks_found` count, for each run."""
    verdicts = newest_looks(VerdictRecord.rollout_id)
    is_right = verdicts.c.verdict.in_([str(each) for each in RIGHT])
    is_sure = verdicts.c.verdict != str(Verdict.UNSURE)
    sample = (
        select(AuditSample.run_id, func.count(), func.count().filter(is_sure), func.count().filter(is_right))
        .outerjoin(verdicts, verdicts.c.subject == AuditSample.rollout_id)
        .where(AuditSample.run_id.in_(run_ids))
        .group_by(AuditSample.run_id)
    )
    drawn_from = select(AuditDraw.run_id).where(AuditDraw.run_id.in_(run_ids))
    rollouts = select(Rollout.run_id, func.count()).where(
        Rollout.run_id.in_(drawn_from),
        Rollout.phase.in_(JUDGED_PHASES),
        Rollout.status == RolloutStatus.COMPLETED,
    )
    flagged = select(Flag.run_id, func.count(Flag.rollout_id.distinct()))
    confirmed = flagged.join(verdicts, verdicts.c.subject == Flag.rollout_id).where(is_right, Flag.run_id.in_(run_ids))
    found: dict[str, dict[uuid.UUID, int]] = {"drawn": {}, "judged": {}, "missed": {}}
    for run_id, *figures in session.execute(sample):
        for name, figure in zip(found, figures, strict=True):
            found[name][run_id] = figure
    counts: dict[str, Any] = {
        "rollouts": rollouts.group_by(Rollout.run_id),
        "flagged": flagged.where(Flag.run_id.in_(drawn_from)).group_by(Flag.run_id),
        "confirmed": confirmed.group_by(Flag.run_id),
    }
    for name, counted in counts.items():
        found[name] = {row[0]: row[1] for row in session.execute(counted)}
    return found
