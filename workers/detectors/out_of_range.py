"""A reward column that left the range which its manifest declares: the reward is not what its author says."""

from collections.abc import Mapping, Sequence

from backend.domain.detectors.catalogue import FACES
from backend.domain.environments.reward_bounds import RangeBreach, Ranges, range_breaches
from workers.detectors.base import FlagDraft, Limits, rollout_detector
from workers.detectors.environment_context import Scene
from workers.detectors.marking import draft_about, whole_reply
from workers.detectors.view import RolloutRow


def look_at(rows: Sequence[RolloutRow], scene: Scene, limits: Limits) -> list[FlagDraft]:
    return [draft for row in rows if (draft := _draft(row, scene, limits["beyond"])) is not None]


def _draft(row: RolloutRow, scene: Scene, beyond: float) -> FlagDraft | None:
    """By the run's own reward, else by the version that scored the rollout again."""
    breaches = _breaches(scene.ranges.get(row.environment, {}), row.columns, row.step_rewards, beyond)
    by = ""
    if not breaches and scene.second is not None:
        breaches = _breaches(scene.second.ranges, row.second_columns, (), beyond)
        by = f"Scored by {scene.second.name}: "
    if not breaches:
        return None
    worst = max(breaches, key=lambda breach: max(breach.value - breach.high, breach.low - breach.value))
    more = f" {len(breaches) - 1} more values are outside their ranges." if len(breaches) > 1 else ""
    is_of_step = worst.step is not None and worst.step < len(row.replies)
    return draft_about(
        FACE,
        row,
        score=1.0,
        sentence=f"{by}{worst.sentence}{more}",
        marks=whole_reply(row, worst.step or 0) if is_of_step else (),
        cluster=f"{worst.column} {'above' if worst.value > worst.high else 'below'} its range",
        column=worst.column,
        value=worst.value,
        range=[worst.low, worst.high],
        step=worst.step,
    )


def _breaches(
    ranges: Ranges, columns: Mapping[str, float], steps: Sequence[Mapping[str, float]], beyond: float
) -> list[RangeBreach]:
    found = range_breaches(ranges, columns, steps)
    return [each for each in found if max(each.value - each.high, each.low - each.value) > beyond]


FACE = FACES["out_of_range"]
DETECTOR = rollout_detector("out_of_range", look_at)
