"""The warm-up: a loss that does not fall."""

import statistics

from backend.domain.training.alarms import AlarmsChoice
from workers.training.alarms.history import History
from workers.training.alarms.sighting import Sighting

FEWEST = 6
"""Points that a judgement needs."""


def warm_up_flat(history: History, choice: AlarmsChoice, *, steps: int) -> list[Sighting]:
    """`steps`: of the whole warm-up."""
    curve = history.curves.get("sft/loss")
    if curve is None or len(curve.values) < FEWEST or curve.steps[-1] < steps / 3:
        return []
    late = statistics.fmean(curve.values[-(len(curve.values) // 3) :])
    first = curve.values[0]
    limit = (1 - choice.warm_up_progress) * first
    if late <= limit:
        return []
    sentence = f"After {curve.steps[-1]} of {steps} warm-up steps the loss is {late:.3g}; it began at {first:.3g}."
    evidence = {"curve": "sft/loss", "value": late, "limit": limit, "window": [curve.steps[0], curve.steps[-1]]}
    return [Sighting("warm_up_flat", sentence, 0, evidence)]
