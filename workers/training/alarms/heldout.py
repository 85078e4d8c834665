"""The examinations: a held-out reward that fell, and a gap between what is trained on and what is not."""

import math

from backend.domain.training.alarms import AlarmsChoice
from workers.training.alarms.history import Curve, History, Stretch
from workers.training.alarms.sighting import Sighting

REWARD, ERROR = "heldout/reward", "heldout/reward_error"
SMALLEST = 0.02
"""A fall that nobody cares about, however certain."""
GAP_ERRORS = 2.0


def heldout_regression(history: History, choice: AlarmsChoice) -> list[Sighting]:
    rewards, errors = history.curves.get(REWARD, Curve()), history.curves.get(ERROR, Curve())
    if len(rewards.values) < 2 or len(errors.values) != len(rewards.values):
        return []
    best = max(range(len(rewards.values)), key=rewards.values.__getitem__)
    top, now = rewards.values[best], rewards.values[-1]
    limit = max(SMALLEST, choice.heldout_errors * math.hypot(errors.values[best], errors.values[-1]))
    if top - now <= limit:
        return []
    sentence = (
        f"The held-out reward is {now:.3f} at step {rewards.steps[-1]}; it was {top:.3f} at step {rewards.steps[best]}."
    )
    evidence = {"curve": REWARD, "value": now, "limit": top - limit, "best": top}
    window = [rewards.steps[best], rewards.steps[-1]]
    return [Sighting("heldout_regression", sentence, rewards.steps[best], {**evidence, "window": window})]


def heldout_gap(history: History, choice: AlarmsChoice) -> list[Sighting]:
    gaps = _gaps(history)
    if len(gaps) < 3:
        return []
    first, (_, before, _), (now, gap, error) = gaps[0][1], gaps[-2], gaps[-1]
    limit = max(choice.gap_limit, GAP_ERRORS * error)
    if min(before, gap) - first <= limit:
        return []
    sentence = (
        f"The training reward is {gap:+.3f} from the held-out reward at step {now}; at the first examination it was"
        f" {first:+.3f}."
    )
    evidence = {"curve": REWARD, "value": gap, "limit": first + limit, "window": [gaps[-2][0], now]}
    return [Sighting("heldout_gap", sentence, gaps[-3][0], evidence)]


def _gaps(history: History) -> list[tuple[int, float, float]]:
    """(step, training minus held-out reward, standard error) of each examination with training before it."""
    rewards, errors = history.curves.get(REWARD, Curve()), history.curves.get(ERROR, Curve())
    found = []
    for step, value, error in zip(rewards.steps, rewards.values, errors.values, strict=False):
        trained = history.at("reward", Stretch(step - 9, step, 0.0, 0.0))
        if step > 0 and trained is not None:
            found.append((step, trained - value, error))
    return found
