"""The review queue, ranked when flags and verdicts are written so that no request has to sort it.

Code that writes flags calls `place` in the same transaction, and code that writes verdicts calls `mark`. Housekeeping
calls `refresh` for everything, because a verdict changes a detector's precision and with it every rank.
"""

import uuid
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from backend.domain.notifications.notices import NoticeKind
from backend.notifications.outbox import announce
from backend.notifications.tables import Notice
from backend.review.tables import ReviewItem

_WRITTEN = ("detectors", "cluster", "suspicion", "reward_share", "rank", "harm", "verdict", "reviewers", "created_at")
_FEW = 5
"""Of fewer flagged rollouts none is drawn, if there are more that are less alike: their places would fill up."""
_LOCK = 0x70726F63
"""Of Postgres's advisory locks: two writers of the list would wait for each other's rows."""

_PLACE = """
WITH newest AS (
  SELECT DISTINCT ON (v.flag_id) f.detector, v.verdict
  FROM verdicts v JOIN flags f ON f.id = v.flag_id
  WHERE NOT v.is_bulk AND v.taken_back_at IS NULL AND v.verdict <> 'unsure'
  ORDER BY v.flag_id, v.created_at DESC, v.id DESC
), known AS (
  SELECT detector, (1.0 + count(*) FILTER (WHERE verdict IN ('hack', 'broken_reward'))) / (2.0 + count(*)) AS precision
  FROM newest GROUP BY detector
), pieces AS (
  SELECT coalesce(f.rollout_id, f.id) AS id, f.run_id, f.rollout_id, f.created_at, f.detector,
         f.detector || ': ' || f.cluster AS cluster,
         coalesce(known.precision, 0.5) * least(greatest(f.score, 0), 1) AS strength
  FROM flags f LEFT JOIN known USING (detector)
  WHERE :all OR f.rollout_id = ANY(:ids) OR (f.rollout_id IS NULL AND f.id = ANY(:ids))
  UNION ALL
  SELECT rollout_id, run_id, rollout_id, created_at, NULL, NULL, 0
  FROM audit_samples WHERE :all OR rollout_id = ANY(:ids)
), suspects AS (
  SELECT id, run_id, rollout_id, min(created_at) AS created_at,
         coalesce(array_agg(DISTINCT detector::text) FILTER (WHERE detector IS NOT NULL), '{}') AS detectors,
         (array_agg(cluster ORDER BY strength DESC, cluster) FILTER (WHERE cluster IS NOT NULL))[1] AS cluster,
         1 - exp(sum(ln(1 - least(strength, 0.999999)))) AS suspicion
  FROM pieces GROUP BY id, run_id, rollout_id
)
INSERT INTO review_items AS item (
  id, run_id, environment_id, rollout_id, detectors, cluster, suspicion, reward_share, rank, reviewers, created_at)
SELECT s.id, s.run_id, version.environment_id, s.rollout_id, s.detectors, s.cluster, s.suspicion,
       CASE WHEN s.rollout_id IS NULL THEN 1 ELSE least(greatest(coalesce(rollout.reward / nullif(
         (SELECT sum(greatest(weight, 0)) FROM unnest(run.weights) weight), 0), 0), 0), 1) END,
       0, '{}', coalesce(rollout.created_at, s.created_at)
FROM suspects s
JOIN runs run ON run.id = s.run_id
LEFT JOIN rollouts rollout ON rollout.id = s.rollout_id
LEFT JOIN groups ON groups.id = rollout.group_id
LEFT JOIN tasks ON tasks.id = groups.task_id
JOIN environment_versions version ON version.id = coalesce(tasks.version_id, run.version_id)
ON CONFLICT (id) DO UPDATE SET detectors = excluded.detectors, cluster = excluded.cluster,
  suspicion = excluded.suspicion, reward_share = excluded.reward_share, created_at = excluded.created_at
WHERE (item.detectors, item.cluster, item.suspicion, item.reward_share, item.created_at) IS DISTINCT FROM
  (excluded.detectors, excluded.cluster, excluded.suspicion, excluded.reward_share, excluded.created_at)
"""
"""The time of an item is its rollout's: the time of the flag or the sampling would reveal which of both it was."""

_RANK = """
WITH touched AS (
  SELECT environment_id, cluster FROM review_items WHERE id = ANY(:ids) AND cluster IS NOT NULL
), flagged AS (
  SELECT id, environment_id, coalesce(cluster, id::text) AS cluster, suspicion * reward_share AS weight
  FROM review_items
  WHERE detectors <> '{}' AND (:all OR id = ANY(:ids) OR (environment_id, cluster) IN (SELECT * FROM touched))
), placed AS (
  SELECT id, weight / sqrt(count(*) OVER peers)
         - CASE WHEN row_number() OVER (peers ORDER BY weight DESC, id) > 1 THEN 1 ELSE 0 END AS rank
  FROM flagged WINDOW peers AS (PARTITION BY environment_id, cluster)
)
UPDATE review_items item SET rank = placed.rank FROM placed WHERE item.id = placed.id AND item.rank <> placed.rank
"""

_MIX = """
WITH blind AS (
  SELECT item.id, item.reward_share, sample.lot, item.environment_id::text AS environment,
         concat_ws('/', item.environment_id, item.run_id) AS run,
         concat_ws('/', item.environment_id, item.run_id, round(item.reward_share * 10)) AS alike
  FROM review_items item JOIN audit_samples sample ON sample.rollout_id = item.rollout_id
  WHERE item.verdict IS NULL AND item.detectors = '{}' AND (:all OR item.id = ANY(:ids))
), flagged AS (
  SELECT id, environment_id, run_id, rollout_id, verdict, suspicion, reward_share, rank,
         count(*) OVER (PARTITION BY environment_id, coalesce(cluster, id::text)) AS size
  FROM review_items WHERE detectors <> '{}' AND EXISTS (SELECT FROM blind)
), lenders AS (
  SELECT scope, suspicion, size, rank < 0 AS is_repeat,
         row_number() OVER (PARTITION BY scope ORDER BY rank, id) AS place
  FROM flagged, LATERAL (VALUES
    (concat_ws('/', environment_id, run_id, round(reward_share * 10))),
    (concat_ws('/', environment_id, run_id)), (environment_id::text), ('everything')) counted_in (scope)
  WHERE verdict IS NULL AND rollout_id IS NOT NULL
), scopes AS (
  SELECT scope, count(*) AS total FROM lenders GROUP BY scope HAVING count(*) >= :few OR scope = 'everything'
), drawn AS (
  SELECT blind.id, blind.reward_share, blind.lot,
         coalesce(alike.scope, run.scope, environment.scope, 'everything') AS scope,
         floor(lot * coalesce(alike.total, run.total, environment.total, everything.total)) + 1 AS place
  FROM blind
  LEFT JOIN scopes alike ON alike.scope = blind.alike
  LEFT JOIN scopes run ON run.scope = blind.run
  LEFT JOIN scopes environment ON environment.scope = blind.environment
  LEFT JOIN scopes everything ON everything.scope = 'everything'
), placed AS (
  SELECT drawn.id, coalesce(lender.suspicion * drawn.reward_share / sqrt(lender.size)
                            - CASE WHEN lender.is_repeat THEN 1 ELSE 0 END, drawn.lot * drawn.reward_share) AS rank
  FROM drawn LEFT JOIN lenders lender ON lender.scope = drawn.scope AND lender.place = drawn.place
)
UPDATE review_items item SET rank = placed.rank FROM placed WHERE item.id = placed.id AND item.rank <> placed.rank
"""
"""An item of the audit sample borrows suspicion, cluster size and being a repeat from a random unreviewed flagged
rollout that resembles it: of its run with its reward to a tenth, else of its run, of its environment, of all. With its
own reward it is then ranked like that rollout, so that rank and reward reveal nothing."""

_HARM = """
WITH touched AS (
  SELECT environment_id, cluster FROM review_items WHERE id = ANY(:ids) AND cluster IS NOT NULL
), weighed AS (
  SELECT item.id, item.environment_id, coalesce(item.cluster, item.id::text) AS cluster,
         CASE WHEN sample.id IS NULL AND item.detectors <> '{}' THEN item.suspicion * item.reward_share
           * CASE WHEN run.kind = 'training' AND run.status IN ('queued', 'running') THEN 2 ELSE 1 END END AS harm
  FROM review_items item JOIN runs run ON run.id = item.run_id
  LEFT JOIN audit_samples sample ON sample.rollout_id = item.rollout_id
  WHERE item.verdict IS NULL
    AND (:all OR item.id = ANY(:ids) OR (item.environment_id, item.cluster) IN (SELECT * FROM touched))
), summed AS (
  SELECT id, CASE WHEN harm IS NULL THEN NULL
    WHEN row_number() OVER (PARTITION BY environment_id, cluster ORDER BY harm DESC NULLS LAST, id) = 1
    THEN sum(harm) OVER (PARTITION BY environment_id, cluster) ELSE harm / (1 + harm) - 1 END AS harm
  FROM weighed
)
UPDATE review_items item SET harm = summed.harm
FROM summed WHERE item.id = summed.id AND item.harm IS DISTINCT FROM summed.harm
"""
"""The first waiting item of a cluster represents all of them: its verdict can be applied to the others. Items of the
audit sample are reviewed blind in their own list, so the list by harm, which shows why, must not contain them."""

_MARK = """
WITH given AS (
  SELECT coalesce(rollout_id, flag_id) AS id, verdict, is_bulk, person_id, created_at, id AS record,
         taken_back_at IS NULL AS stands
  FROM verdicts
  WHERE coalesce(rollout_id, flag_id) IS NOT NULL
    AND (:all OR rollout_id = ANY(:ids) OR (rollout_id IS NULL AND flag_id = ANY(:ids)))
), summed AS (
  SELECT id, (array_agg(verdict ORDER BY created_at DESC, record DESC) FILTER (WHERE stands))[1] AS verdict,
         coalesce(array_agg(DISTINCT person_id) FILTER (WHERE stands AND NOT is_bulk AND person_id IS NOT NULL), '{}')
           AS reviewers
  FROM given GROUP BY id
)
UPDATE review_items item SET verdict = summed.verdict, reviewers = summed.reviewers
FROM summed
WHERE item.id = summed.id AND (item.verdict, item.reviewers) IS DISTINCT FROM (summed.verdict, summed.reviewers)
"""

_DROP = """
DELETE FROM review_items item
WHERE id = ANY(:ids)
  AND NOT EXISTS (SELECT FROM flags WHERE flags.rollout_id = item.id OR flags.id = item.id)
  AND NOT EXISTS (SELECT FROM audit_samples WHERE rollout_id = item.id)
"""


def place(session: Session, ids: Collection[uuid.UUID]) -> None:
    """Rank rollouts (or flags about a run) by their flags and the detectors' current precision."""
    _write(session, (_PLACE, _MARK, _RANK, _MIX, _HARM), ids)


def mark(session: Session, ids: Collection[uuid.UUID]) -> None:
    """Store the newest verdicts and the reviewers of these rollouts or flags about a run."""
    _write(session, (_MARK,), ids)


def drop(session: Session, ids: Collection[uuid.UUID]) -> None:
    """Remove items that no detector flags any more, and rank the others again."""
    _write(session, (_DROP, _PLACE, _RANK, _MIX, _HARM), ids)


def refresh(session: Session) -> None:
    """Rank everything again."""
    _write(session, (_PLACE, _MARK, _RANK, _MIX, _HARM), None)


def announce_waiting(session: Session) -> bool:
    """Notify members once per day that flagged items wait, if new ones came since the last time."""
    last = session.scalar(select(func.max(Notice.created_at)).where(Notice.kind == NoticeKind.REVIEW_WAITING))
    if last and last > datetime.now(UTC) - timedelta(days=1):
        return False
    waiting = select(func.count(), func.max(ReviewItem.created_at)).where(
        ReviewItem.verdict.is_(None), ReviewItem.harm.is_not(None)
    )
    count, newest = session.execute(waiting).one()
    if not count or (last and newest <= last):
        return False
    announce(
        session,
        kind=NoticeKind.REVIEW_WAITING,
        title=f"{count:,} flagged item{'s wait' if count > 1 else ' waits'} for review",
        text="The queue lists them by expected harm.",
        path="/review",
    )
    return True


def _write(session: Session, statements: Collection[str], ids: Collection[uuid.UUID] | None) -> None:
    if ids is not None and not ids:
        return
    session.flush()
    session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    chosen: dict[str, Any] = {"all": ids is None, "ids": list(ids or ()), "few": _FEW}
    for statement in statements:
        session.execute(text(statement), chosen)
    for row in session.identity_map.values():
        if isinstance(row, ReviewItem):
            session.expire(row, _WRITTEN)
