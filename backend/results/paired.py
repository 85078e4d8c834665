"""Paired differences of many pairs of evaluations, computed in the database."""

import uuid
from collections.abc import Sequence

from sqlalchemy import text
from sqlalchemy.orm import Session

from backend.domain.statistics import Estimate, estimate_of
from backend.domain.vocabulary import Phase, RolloutStatus

MAX_GROUPS = 500
"""Groups of each run that are read, from the first on. Runs of one setup have the same tasks there."""

_DIFFERENCES = text("""
WITH pair AS (
    SELECT * FROM unnest(CAST(:before AS uuid[]), CAST(:after AS uuid[])) WITH ORDINALITY AS p (before, after, place)
), played AS MATERIALIZED (
    SELECT g.run_id, t.split, t.index, t.seed, avg(r.reward::float8) AS reward
    FROM groups g JOIN rollouts r ON r.group_id = g.id JOIN tasks t ON t.id = g.task_id
    WHERE g.run_id = ANY(CAST(:before AS uuid[]) || CAST(:after AS uuid[]))
      AND g.phase = :phase AND g.ordinal < :most AND r.status = :completed
    GROUP BY g.run_id, t.split, t.index, t.seed
)
SELECT p.place, count(*) AS tasks, avg(b.reward - a.reward) AS mean, stddev_samp(b.reward - a.reward) AS deviation
FROM pair p JOIN played a ON a.run_id = p.before
JOIN played b ON b.run_id = p.after AND (b.split, b.index, b.seed) = (a.split, a.index, a.seed)
GROUP BY p.place
""")


def paired_differences(
    session: Session, pairs: Sequence[tuple[uuid.UUID, uuid.UUID]], *, most: int = MAX_GROUPS
) -> list[Estimate | None]:
    """Return the mean of after - before over the tasks that both completed, with Student's t interval, for each pair.

    The runs must be evaluations with the same setup, found by the session. None: no task in common.
    """
    if not pairs:
        return []
    before, after = zip(*pairs, strict=True)
    values = {"before": list(before), "after": list(after), "most": most}
    rows = session.execute(
        _DIFFERENCES, values | {"phase": str(Phase.EVALUATION), "completed": str(RolloutStatus.COMPLETED)}
    )
    found = {row.place: estimate_of(row.mean, row.deviation or 0.0, row.tasks) for row in rows}
    return [found.get(place) for place in range(1, len(pairs) + 1)]
