"""Variety: groups that teach nothing, and an entropy that collapses or explodes."""

from backend.domain.training.alarms import AlarmsChoice
from workers.training.alarms.history import History
from workers.training.alarms.sighting import Sighting


def no_variance(history: History, choice: AlarmsChoice) -> list[Sighting]:
    now = history.present("groups/no_variance")
    if now is None or now.mean <= choice.no_variance_share:
        return []
    sentence = f"In {now.mean:.0%} of the groups of steps {now.first} to {now.last} all episodes earned the same."
    evidence = {"curve": "groups/no_variance", "value": now.mean, "limit": choice.no_variance_share}
    return [Sighting("no_variance", sentence, now.first, {**evidence, "window": now.steps})]


def entropy_collapse(history: History, choice: AlarmsChoice) -> list[Sighting]:
    now, began = history.present("entropy"), history.beginning("entropy")
    if now is None or began is None or began <= 0 or now.mean >= choice.entropy_floor * began:
        return []
    sentence = (
        f"The entropy is {now.mean:.3g} nats a token over steps {now.first} to {now.last}, {now.mean / began:.0%} of"
        f" the {began:.3g} at the beginning."
    )
    limit = choice.entropy_floor * began
    evidence = {"curve": "entropy", "value": now.mean, "limit": limit, "beginning": began, "window": now.steps}
    return [Sighting("entropy_collapse", sentence, now.first, evidence)]


def entropy_explosion(history: History, choice: AlarmsChoice) -> list[Sighting]:
    now, began = history.present("entropy"), history.beginning("entropy")
    if now is None or began is None or began <= 0 or now.mean <= choice.entropy_ceiling * began:
        return []
    sentence = (
        f"The entropy is {now.mean:.3g} nats a token over steps {now.first} to {now.last}, {now.mean / began:.1f} times"
        f" the {began:.3g} at the beginning."
    )
    limit = choice.entropy_ceiling * began
    evidence = {"curve": "entropy", "value": now.mean, "limit": limit, "beginning": began, "window": now.steps}
    calmest = history.best("entropy", sign=-1)
    return [Sighting("entropy_explosion", sentence, calmest.last if calmest else now.first, evidence)]
