"""Episodes that people played by hand, as a baseline: one row of a leaderboard, whose policy is `human`."""

import uuid
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.domain.environments.manifest import Manifest
from backend.domain.rollouts.rollout import task_of
from backend.domain.runs.plans import Opponent
from backend.domain.vocabulary import RunKind, RunStatus, Split
from backend.policies.tables import Policy
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run

MAX_EPISODES = 5000
"""Earliest episodes of a version that are considered."""


@dataclass(frozen=True, slots=True)
class PlayedByHand:
    """A person's first episode on a task, played without help."""

    run_id: uuid.UUID
    policy: Policy
    index: int
    opponent: Opponent | None
    """None: the environment's script, or no other seat."""
    reward: float
    score: float | None
    """Result of a game: 1 for a win, 0.5 for a draw, 0 for a loss."""
    at: datetime


def played_by_hand(session: Session, version_id: uuid.UUID, manifest: Manifest, split: Split) -> list[PlayedByHand]:
    """Return the episodes of people that count as a baseline, earliest first.

    A person's first episode on a task counts, if it was completed, and no move was taken back or played by a policy: a
    later one knows the task. The task has its usual seed.
    """
    statement = (
        select(
            *(Run.id, Run.status, Run.created_by, Run.seed, Run.created_at, Run.configuration),
            *(Policy, Rollout.reward, Rollout.metrics),
            Run.progress["is_assisted"].as_boolean().label("is_assisted"),
            Run.progress["authors"].label("authors"),
        )
        .join(Policy, Policy.id == Run.policy_id)
        .join(Rollout, Rollout.run_id == Run.id)
        .where(Run.version_id == version_id, Run.kind == RunKind.PLAY)
        .where(Run.configuration["split"].astext == str(split))
        .order_by(Run.created_at, Run.id)
        .limit(MAX_EPISODES)
    )
    seeds: dict[int, int] = {}
    met: defaultdict[object, set[int]] = defaultdict(set)
    counted = []
    for row in session.execute(statement):
        index = int(row.configuration["index"])
        is_first = row.created_by is not None and index not in met[row.created_by]
        met[row.created_by].add(index)
        if index not in seeds:
            seeds[index] = task_of(manifest, split, index).seed
        is_whole = row.status is RunStatus.COMPLETED and row.reward is not None and row.seed == seeds[index]
        if not is_first or not is_whole or row.is_assisted or any(row.authors or ()):
            continue
        opponent = row.configuration.get("opponent")
        score = (row.metrics or {}).get("match_score")
        counted.append(
            PlayedByHand(
                row.id,
                row.Policy,
                index,
                Opponent.model_validate(opponent) if opponent else None,
                row.reward,
                float(score) if isinstance(score, int | float) else None,
                row.created_at,
            )
        )
    return counted
