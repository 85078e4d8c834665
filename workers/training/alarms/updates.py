"""The optimiser's steps: how far and how violently the policy moves, and whether numbers are numbers."""

import math
import statistics

from backend.domain.training.alarms import AlarmsChoice
from workers.training.alarms.history import History
from workers.training.alarms.sighting import Sighting

RECENT, SPIKES = 5, 3
"""So many of so many steps make an alarm: one long gradient is no news."""
MEMORY = 50
"""Steps before them that give the usual length of a gradient."""
FEWEST = 20
"""Steps before anything is judged."""
MUST_BE_NUMBERS = ("loss", "grad_norm", "entropy", "divergence", "sft/loss", "sft/grad_norm")


def not_finite(history: History, choice: AlarmsChoice) -> list[Sighting]:
    spoiled = [name for name in MUST_BE_NUMBERS if not math.isfinite(history.newest.get(name, 0.0))]
    if not spoiled:
        return []
    told = " and ".join(f"{name} is {history.newest[name]}" for name in spoiled)
    evidence = {"curve": spoiled[0], "value": str(history.newest[spoiled[0]]), "window": [history.step, history.step]}
    return [Sighting("not_finite", f"At step {history.step} {told}.", history.step - 1, evidence)]


def gradient_norm(history: History, choice: AlarmsChoice) -> list[Sighting]:
    curve = history.curves.get("grad_norm")
    if curve is None or len(curve.values) < FEWEST:
        return []
    usual = statistics.median(curve.values[-RECENT - MEMORY : -RECENT])
    recent = curve.values[-RECENT:]
    limit = choice.gradient_factor * usual
    if usual <= 0 or sum(value > limit for value in recent) < SPIKES:
        return []
    sentence = (
        f"Gradients of {max(recent):.3g} in steps {curve.steps[-RECENT]} to {curve.steps[-1]}, usual were {usual:.3g}:"
        f" {max(recent) / usual:.0f} times as long."
    )
    evidence = {"curve": "grad_norm", "value": max(recent), "limit": limit, "usual": usual}
    window = [curve.steps[-RECENT], curve.steps[-1]]
    return [Sighting("gradient_norm", sentence, window[0] - 1, {**evidence, "window": window})]


def divergence(history: History, choice: AlarmsChoice) -> list[Sighting]:
    now = history.present("divergence")
    if now is None or now.mean <= choice.divergence_limit:
        return []
    sentence = (
        f"The policy is {now.mean:.2g} nats a token from what it was before GRPO, over steps {now.first} to {now.last}."
    )
    evidence = {"curve": "divergence", "value": now.mean, "limit": choice.divergence_limit, "window": now.steps}
    return [Sighting("divergence", sentence, now.first, evidence)]


def importance_ratio(history: History, choice: AlarmsChoice) -> list[Sighting]:
    ratio, limit = history.present("ratio/mean"), choice.importance_ratio_limit
    if ratio is not None and not 1 / limit <= ratio.mean <= limit:
        sentence = (
            f"The mean importance ratio is {ratio.mean:.2f} over steps {ratio.first} to {ratio.last}, not about 1."
        )
        evidence = {"curve": "ratio/mean", "value": ratio.mean, "limit": limit, "window": ratio.steps}
        return [Sighting("importance_ratio", sentence, ratio.first, evidence)]
    low, high = history.present("ratio/low_clip"), history.present("ratio/high_clip")
    clipped = (low.mean if low else 0.0) + (high.mean if high else 0.0)
    window = low or high
    if window is None or clipped <= choice.clipped_share:
        return []
    sentence = f"{clipped:.0%} of the tokens are clipped over steps {window.first} to {window.last}."
    evidence = {"curve": "ratio/high_clip", "value": clipped, "limit": choice.clipped_share, "window": window.steps}
    return [Sighting("importance_ratio", sentence, window.first, evidence)]


def failed_rollouts(history: History, choice: AlarmsChoice) -> list[Sighting]:
    now = history.present("rollouts/failed", 5)
    if now is None or not history.episodes or now.mean / history.episodes <= choice.failed_share:
        return []
    share = now.mean / history.episodes
    sentence = f"{share:.0%} of the episodes of steps {now.first} to {now.last} failed."
    evidence = {"curve": "rollouts/failed", "value": share, "limit": choice.failed_share, "window": now.steps}
    return [Sighting("failed_rollouts", sentence, now.first, evidence)]
