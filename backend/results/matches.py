"""Results of evaluations in which several policies played: wins, draws and losses by seat."""

import math
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.orm import Session

from backend.domain.described import described
from backend.domain.runs.plans import EvaluationPlan
from backend.domain.statistics import Estimate, estimate_of
from backend.runs.tables import Run

_GAMES = """
SELECT r.group_id, r.seat, (r.metrics->>'match_score')::float8 AS score FROM rollouts r
WHERE r.run_id = :run AND r.phase = 'evaluation' AND r.status = 'completed' AND r.seat IS NOT NULL
  AND jsonb_typeof(r.metrics->'match_score') = 'number'
"""
_BY_SEAT = text(f"""
SELECT seat, count(*) FILTER (WHERE score = 1) AS wins, count(*) FILTER (WHERE score = 0.5) AS draws,
       count(*) FILTER (WHERE score = 0) AS losses
FROM ({_GAMES}) AS games GROUP BY seat ORDER BY seat
""")
_BY_TASK = text(f"""
SELECT avg(score) AS mean, stddev_samp(score) AS deviation, count(*) AS tasks
FROM (SELECT avg(score) AS score FROM ({_GAMES}) AS games GROUP BY group_id) AS tasks
""")
_COLUMNS_OF_OPPONENT = text("""
SELECT columns.key AS name, avg(columns.value::float8) AS mean
FROM rollouts r, jsonb_array_elements(r.seats->'others') AS play, jsonb_each_text(play->'columns') AS columns
WHERE r.run_id = :run AND r.phase = 'evaluation' AND r.status = 'completed' AND r.seat IS NOT NULL
GROUP BY columns.key
""")


@dataclass(frozen=True, slots=True)
@described
class SeatResult:
    """Games of the run's policy on one seat."""

    seat: str
    wins: int
    draws: int
    losses: int

    @property
    def games(self) -> int:
        return self.wins + self.draws + self.losses


@dataclass(frozen=True, slots=True)
@described
class MatchResult:
    """How a run's policy did against others."""

    opponent: str
    """Empty: the script of the environment."""
    score: Estimate
    """Over tasks: a win is 1, a draw 0.5. Each task counts once, whichever seats were played."""
    seats: list[SeatResult]

    def elo(self, score: float) -> float | None:
        """The difference of ratings that explains a score: 400 log10(s / (1 - s)). None for a score of 0 or 1."""
        return 400 * math.log10(score / (1 - score)) if 0 < score < 1 else None


def match_result(session: Session, run: Run) -> MatchResult | None:
    """The result of an evaluation; None if one policy played alone, or no game has ended."""
    seats = [SeatResult(**row) for row in session.execute(_BY_SEAT, {"run": run.id}).mappings()]
    if not seats:
        return None
    row = session.execute(_BY_TASK, {"run": run.id}).one()
    opponent = EvaluationPlan.model_validate(run.configuration).opponent
    score = estimate_of(row.mean, row.deviation or 0.0, row.tasks)
    return MatchResult(opponent.name if opponent else "", score, seats)


def opponent_columns(session: Session, run: Run) -> dict[str, float]:
    """Means of the reward columns of the other seats. Reads every rollout's turns, so it is done once, at the end."""
    found = {row.name: row.mean for row in session.execute(_COLUMNS_OF_OPPONENT, {"run": run.id})}
    return {name: found[name] for name in run.columns if name in found}
