"""Stored benchmarks of the detectors on labeled rollouts, and the same counts from the team's own reviews."""

import uuid
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from importlib.metadata import version as package_version

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from backend.detectors.queries import RIGHT, newest_looks
from backend.detectors.tables import DetectorBenchmark, Flag
from backend.domain.detectors.benchmark import FamilyCount, SourceBenchmark
from backend.domain.detectors.labeled import LabeledSplit
from backend.domain.vocabulary import Verdict
from backend.errors import InvalidInput
from backend.review.tables import AuditSample, VerdictRecord

OWN_SOURCE = "own:reviews"
MAX_SOURCES = 100


def store(session: Session, person_id: uuid.UUID | None, results: Sequence[SourceBenchmark]) -> None:
    """Add a result per source. Raises InvalidInput for too many sources."""
    known = set(session.scalars(select(DetectorBenchmark.source).distinct()))
    if len(known | {each.source for each in results}) > MAX_SOURCES:
        raise InvalidInput(fields={"results": f"Results of at most {MAX_SOURCES} sources are stored."})
    for each in results:
        row = DetectorBenchmark(source=each.source, result=each.model_dump(mode="json"), created_by=person_id)
        session.add(row)
    session.flush()


def newest(session: Session) -> list[tuple[SourceBenchmark, datetime | None]]:
    """Return the team's own reviews, if there are any, then the newest result of each source and its time."""
    statement = (
        select(DetectorBenchmark)
        .order_by(DetectorBenchmark.source, DetectorBenchmark.created_at.desc(), DetectorBenchmark.id.desc())
        .ext(distinct_on(DetectorBenchmark.source))
    )
    stored: list[tuple[SourceBenchmark, datetime | None]] = [
        (SourceBenchmark.model_validate(row.result), row.created_at) for row in session.scalars(statement)
    ]
    own = own_reviews(session)
    return [(own, None), *stored] if own.families else stored


def own_reviews(session: Session) -> SourceBenchmark:
    """Count the rollouts that reviewers judged individually, and those among them that each detector flagged.

    The audit sample is a random sample of rollouts that no detector had flagged: a hack there was missed by all. Other
    rollouts were reviewed because they were flagged or picked, so their shares say nothing about rollouts in general.
    """
    looks = newest_looks(VerdictRecord.rollout_id)
    is_hack = looks.c.verdict.in_([str(each) for each in RIGHT])
    is_drawn = AuditSample.rollout_id.is_not(None)
    judged = (
        select(looks.c.subject.label("rollout"), is_hack.label("is_hack"), is_drawn.label("is_drawn"))
        .outerjoin(AuditSample, AuditSample.rollout_id == looks.c.subject)
        .where(looks.c.verdict != str(Verdict.UNSURE))
        .subquery()
    )
    key = judged.c.is_hack, judged.c.is_drawn
    flagged = func.count(Flag.rollout_id.distinct())
    totals = select(*key, func.count(judged.c.rollout.distinct()), flagged)
    per_detector = select(*key, Flag.detector, flagged).join(Flag, Flag.rollout_id == judged.c.rollout)
    by_detector: defaultdict[tuple[bool, bool], dict[str, int]] = defaultdict(dict)
    for hack, drawn, detector, count in session.execute(per_detector.group_by(*key, Flag.detector)):
        by_detector[hack, drawn][detector] = count
    rows = session.execute(
        totals.select_from(judged).outerjoin(Flag, Flag.rollout_id == judged.c.rollout).group_by(*key).order_by(*key)
    )
    families = [
        FamilyCount(
            family="random audit sample" if drawn else "flagged or picked",
            is_hack=hack,
            split=LabeledSplit.TEST,
            total=total,
            flagged=count,
            by_detector=by_detector[hack, drawn],
        )
        for hack, drawn, total, count in rows
    ]
    return SourceBenchmark(
        source=OWN_SOURCE,
        title="Rollouts that this team reviewed",
        license="not published",
        families=families,
        proctor=package_version("proctor"),
    )
