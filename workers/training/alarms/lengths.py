"""Lengths: replies that grow or shrink without earning more, and replies that are cut off."""

from backend.domain.training.alarms import AlarmsChoice
from workers.training.alarms.history import History
from workers.training.alarms.sighting import Sighting

CURVE = "completions/mean_length"


def length_growth(history: History, choice: AlarmsChoice) -> list[Sighting]:
    return _length(history, "length_growth", choice.length_ceiling, is_growth=True)


def length_collapse(history: History, choice: AlarmsChoice) -> list[Sighting]:
    return _length(history, "length_collapse", choice.length_floor, is_growth=False)


def _length(history: History, name: str, factor: float, *, is_growth: bool) -> list[Sighting]:
    now, began = history.present(CURVE), history.beginning(CURVE)
    if now is None or began is None or began <= 0 or history.is_rewarded():
        return []
    ratio = now.mean / began
    if (ratio <= factor) if is_growth else (ratio >= factor):
        return []
    sentence = (
        f"An episode's replies have {now.mean:.0f} tokens over steps {now.first} to {now.last}, {ratio:.1f} times the"
        f" {began:.0f} at the beginning, and the reward does not rise."
    )
    evidence = {"curve": CURVE, "value": now.mean, "limit": factor * began, "beginning": began, "window": now.steps}
    return [Sighting(name, sentence, now.first, evidence)]


def truncation(history: History, choice: AlarmsChoice) -> list[Sighting]:
    now = history.present("completions/truncated")
    if now is None or now.mean <= choice.truncation_share:
        return []
    sentence = f"{now.mean:.0%} of the episodes of steps {now.first} to {now.last} were cut off at the token limit."
    evidence = {"curve": "completions/truncated", "value": now.mean, "limit": choice.truncation_share}
    return [Sighting("truncation", sentence, now.first, {**evidence, "window": now.steps})]
