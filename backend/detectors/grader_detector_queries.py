"""What people and the blind sample say of the runs that something was asked about."""

import uuid
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.detectors.grader_detectors import detector_of
from backend.detectors.queries import JUDGED_PHASES, RIGHT, Scope, newest_looks
from backend.detectors.tables import Flag
from backend.domain.detectors.track_record import Audit
from backend.domain.graders.settings import GraderKind
from backend.domain.vocabulary import RolloutStatus, Verdict
from backend.environments.tables import Environment, EnvironmentVersion
from backend.graders.tables import Grader, GraderRun
from backend.review.tables import AuditDraw, AuditSample, VerdictRecord
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run


@dataclass(frozen=True, slots=True)
class Around:
    """Of the runs that something was asked about, whoever found it."""

    audit: Audit = field(default_factory=Audit)
    hacks: int = 0
    """Rollouts that any detector flagged and people confirmed, one by one."""

    def __add__(self, other: "Around") -> "Around":
        return Around(self.audit + other.audit, self.hacks + other.hacks)


def around(session: Session, scope: Scope) -> dict[str, dict[str, Around]]:
    """By detector that is asked, and environment. It never looked at other runs, so nothing that lies there was missed
    by it."""
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
        runs[detector_of(kind, name), environment].add(run_id)
    ids = set().union(*runs.values())
    if not ids:
        return {}
    by_run = _by_run(session, ids)
    found: defaultdict[str, dict[str, Around]] = defaultdict(dict)
    for (detector, environment), theirs in runs.items():
        found[detector][environment] = _together(by_run, theirs)
    return found


def _together(by_run: Mapping[str, Mapping[uuid.UUID, int]], runs: set[uuid.UUID]) -> Around:
    counts = {name: sum(found.get(run_id, 0) for run_id in runs) for name, found in by_run.items()}
    unflagged = max(0, counts["rollouts"] - counts["flagged"])
    return Around(Audit(unflagged, counts["drawn"], counts["judged"], counts["missed"]), counts["confirmed"])


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
