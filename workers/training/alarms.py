"""Alarms of a training run: its curves so far, one check per alarm, and which conditions hold now.

Checks are registered by the name of their alarm in `ALARM_KINDS`, which holds its title, formula and advice.
"""

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from backend.domain.training.alarms import AlarmsChoice, action_of

WINDOW = 10  # steps over which current values are averaged
BEGINNING = slice(4, 20)  # points that represent the beginning of a curve: steps 5 to 20
CALM_STEPS = 5  # steps without a condition after which its alarm is cleared
FALL_ERRORS = 4.0
"""Standard errors that a fall must exceed: small steps are noisy, and the best of many windows is biased upward."""
RECENT, SPIKES = 5, 3  # long gradients among recent steps that raise an alarm; a single one does not
USUAL_STEPS, FEWEST_STEPS = 50, 20  # steps that define the usual gradient norm, and steps required before it is checked
MUST_BE_NUMBERS = ("loss", "grad_norm", "entropy", "divergence", "sft/loss", "sft/grad_norm")
HELDOUT, HELDOUT_ERROR = "heldout/reward", "heldout/reward_error"
SMALLEST_FALL = 0.02  # held-out regression that does not matter, however certain
GAP_ERRORS = 2.0
LENGTH = "completions/mean_length"


@dataclass(frozen=True, slots=True)
class CurveWindow:
    """Consecutive points of a curve."""

    first: int
    last: int
    mean: float
    error: float  # standard error of the mean, from the spread of the steps


@dataclass(frozen=True, slots=True)
class Curve:
    """The finite points of one curve."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def window(self, start: int, end: int) -> CurveWindow:
        values = self.values[start:end]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        error = spread / math.sqrt(len(values))
        return CurveWindow(self.steps[start], self.steps[end - 1], statistics.fmean(values), error)


@dataclass(slots=True)
class CurveHistory:
    """All curves of a run so far. Steps are added in ascending order, a held-out evaluation after its step."""

    weights: Mapping[str, float]
    episodes: int
    curves: dict[str, Curve] = field(default_factory=dict)
    newest: dict[str, float] = field(default_factory=dict)  # all figures of the latest step, including NaN and infinity
    step: int = 0

    def add(self, step: int, figures: Mapping[str, float]) -> None:
        self.step, self.newest = step, dict(figures)
        for name, value in figures.items():
            if math.isfinite(value):
                curve = self.curves.setdefault(name, Curve())
                curve.steps.append(step)
                curve.values.append(value)

    def present(self, name: str, count: int = WINDOW) -> CurveWindow | None:
        """Return the last points of a curve, or None if there are fewer than `count`."""
        curve = self.curves.get(name)
        if curve is None or len(curve.values) < count:
            return None
        return curve.window(len(curve.values) - count, len(curve.values))

    def beginning(self, name: str) -> float | None:
        """Return the median of the first steps, or None if they have not ended or the median is not positive."""
        curve = self.curves.get(name)
        if curve is None or len(curve.values) < BEGINNING.stop + WINDOW:
            return None
        median = statistics.median(curve.values[BEGINNING])
        return median if median > 0 else None

    def best(self, name: str, *, sign: float = 1.0) -> CurveWindow | None:
        """Return the window with the highest mean, or the lowest with `sign` -1."""
        curve = self.curves.get(name)
        if curve is None or len(curve.values) < WINDOW:
            return None
        sums = np.cumsum([0.0, *curve.values])
        start = int(np.argmax(sign * (sums[WINDOW:] - sums[:-WINDOW])))
        return curve.window(start, start + WINDOW)

    def mean_between(self, name: str, first: int, last: int) -> float | None:
        """Return the mean of a curve over these steps, both included."""
        curve = self.curves.get(name, Curve())
        values = [value for step, value in zip(curve.steps, curve.values, strict=True) if first <= step <= last]
        return statistics.fmean(values) if values else None


@dataclass(frozen=True, slots=True)
class Sighting:
    """A condition that holds now."""

    name: str
    sentence: str
    onset: int  # last step that was probably still sound. Roll back to a checkpoint before it.
    evidence: Mapping[str, object] = field(default_factory=dict)
    key: str = ""  # subject of the alarm, for alarms that can have several at once

    @property
    def condition(self) -> str:
        return f"{self.name}/{self.key}" if self.key else self.name


Check = Callable[[CurveHistory, AlarmsChoice], list[Sighting]]  # returns the conditions that hold after the latest step


def not_finite(history: CurveHistory, choice: AlarmsChoice) -> list[Sighting]:
    spoiled = [name for name in MUST_BE_NUMBERS if not math.isfinite(history.newest.get(name, 0.0))]
    if not spoiled:
        return []
    values = " and ".join(f"{name} is {history.newest[name]}" for name in spoiled)
    evidence = {"curve": spoiled[0], "value": str(history.newest[spoiled[0]]), "window": [history.step, history.step]}
    return [Sighting("not_finite", f"At step {history.step} {values}.", history.step - 1, evidence)]


def failed_rollouts(history: CurveHistory, choice: AlarmsChoice) -> list[Sighting]:
    now = history.present("rollouts/failed", 5)
    if now is None or not history.episodes or now.mean / history.episodes <= choice.failed_share:
        return []
    share = now.mean / history.episodes
    sentence = f"{share:.0%} of the episodes of steps {now.first} to {now.last} failed."
    evidence = {
        "curve": "rollouts/failed",
        "value": share,
        "limit": choice.failed_share,
        "window": [now.first, now.last],
    }
    return [Sighting("failed_rollouts", sentence, now.first, evidence)]


def _beyond_limit(
    name: str, curve: str, setting: str, sentence: str, history: CurveHistory, choice: AlarmsChoice
) -> list[Sighting]:
    """Compare the current mean of a curve with the limit in `setting`. `sentence` is a format string.

    Floors and ceilings are factors of the curve's beginning.
    """
    is_floor, is_ceiling = setting.endswith("_floor"), setting.endswith("_ceiling")
    now, began = history.present(curve), history.beginning(curve) if is_floor or is_ceiling else 1.0
    if now is None or began is None:
        return []
    limit = getattr(choice, setting) * began
    if (now.mean >= limit) if is_floor else (now.mean <= limit):
        return []
    evidence: dict[str, object] = {"curve": curve, "value": now.mean, "limit": limit, "window": [now.first, now.last]}
    sentence = f"{sentence.format(now.mean)} over steps {now.first} to {now.last}"
    if not (is_floor or is_ceiling):
        return [Sighting(name, f"{sentence}.", now.first, evidence)]
    onset, note = now.first, ""
    if curve == LENGTH:
        rewards = history.curves.get("reward", Curve())
        count = len(rewards.values)
        if count >= 3 * WINDOW:
            late = rewards.window(count - WINDOW, count)
            early = rewards.window(count - 3 * WINDOW, count - 2 * WINDOW)
            if late.mean > early.mean + max(late.error, early.error):
                return []
        note = ", and the reward does not rise"
    elif is_ceiling and (calmest := history.best(curve, sign=-1)):
        onset = calmest.last
    change = f"{now.mean / began:.3g} times the {began:.3g} at the beginning"
    return [Sighting(name, f"{sentence}, {change}{note}.", onset, {**evidence, "beginning": began})]


def importance_ratio(history: CurveHistory, choice: AlarmsChoice) -> list[Sighting]:
    ratio, limit = history.present("ratio/mean"), choice.importance_ratio_limit
    if ratio is not None and not 1 / limit <= ratio.mean <= limit:
        sentence = f"The mean importance ratio is {ratio.mean:.2f} over steps {ratio.first} to {ratio.last}, not 1."
        evidence = {"curve": "ratio/mean", "value": ratio.mean, "limit": limit, "window": [ratio.first, ratio.last]}
        return [Sighting("importance_ratio", sentence, ratio.first, evidence)]
    low, high = history.present("ratio/low_clip"), history.present("ratio/high_clip")
    clipped = (low.mean if low else 0.0) + (high.mean if high else 0.0)
    window = low or high
    if window is None or clipped <= choice.clipped_share:
        return []
    sentence = f"{clipped:.0%} of the tokens are clipped over steps {window.first} to {window.last}."
    evidence = {
        "curve": "ratio/high_clip",
        "value": clipped,
        "limit": choice.clipped_share,
        "window": [window.first, window.last],
    }
    return [Sighting("importance_ratio", sentence, window.first, evidence)]


def gradient_norm(history: CurveHistory, choice: AlarmsChoice) -> list[Sighting]:
    curve = history.curves.get("grad_norm")
    if curve is None or len(curve.values) < FEWEST_STEPS:
        return []
    usual = statistics.median(curve.values[-RECENT - USUAL_STEPS : -RECENT])
    recent, window = curve.values[-RECENT:], [curve.steps[-RECENT], curve.steps[-1]]
    limit = choice.gradient_factor * usual
    if usual <= 0 or sum(value > limit for value in recent) < SPIKES:
        return []
    sentence = (
        f"The gradient norm reached {max(recent):.3g} in steps {window[0]} to {window[1]}, "
        f"{max(recent) / usual:.0f} times the usual {usual:.3g}."
    )
    evidence = {"curve": "grad_norm", "value": max(recent), "limit": limit, "usual": usual, "window": window}
    return [Sighting("gradient_norm", sentence, window[0] - 1, evidence)]


def format_fall(history: CurveHistory, choice: AlarmsChoice) -> list[Sighting]:
    best, now = history.best("format"), history.present("format")
    if best is None or now is None or not _is_fall(best, now, choice.format_drop):
        return []
    sentence = (
        f"{now.mean:.1%} of the turns of steps {now.first} to {now.last} could be parsed, down from {best.mean:.1%} in "
        f"steps {best.first} to {best.last}."
    )
    evidence = {"curve": "format", "value": now.mean, "limit": best.mean - choice.format_drop, "best": best.mean}
    return [
        Sighting(
            "format_fall",
            sentence,
            best.last,
            {**evidence, "window": [now.first, now.last], "best_window": [best.first, best.last]},
        )
    ]


def column_fall(history: CurveHistory, choice: AlarmsChoice) -> list[Sighting]:
    """Check every weighted column except the format, which has its own alarm."""
    sightings = []
    reward = history.present("reward", 2 * WINDOW)
    for name, weight in history.weights.items():
        if not weight or name == "format":
            continue
        curve, sign = f"columns/{name}", math.copysign(1.0, weight)
        best, now = history.best(curve, sign=sign), history.present(curve, 2 * WINDOW)
        if best is None or now is None or not _is_fall(best, now, choice.column_drop, sign):
            continue
        earlier = history.mean_between("reward", best.first, best.last)
        if reward is None or earlier is None or reward.mean < earlier - 2 * reward.error:
            continue
        sentence = (
            f"`{name}` is {now.mean:.3f} over steps {now.first} to {now.last}, compared with {best.mean:.3f} in steps "
            f"{best.first} to {best.last}. Meanwhile the reward went from {earlier:.3f} to {reward.mean:.3f}."
        )
        evidence = {"curve": curve, "column": name, "value": now.mean, "limit": best.mean - sign * choice.column_drop}
        windows = {"best": best.mean, "window": [now.first, now.last], "best_window": [best.first, best.last]}
        sightings.append(Sighting("column_fall", sentence, best.last, {**evidence, **windows}, key=name))
    return sightings


def _is_fall(best: CurveWindow, now: CurveWindow, drop: float, sign: float = 1.0) -> bool:
    depth = sign * (best.mean - now.mean)
    return now.first > best.last and depth > max(drop, FALL_ERRORS * math.hypot(best.error, now.error))


def heldout_regression(history: CurveHistory, choice: AlarmsChoice) -> list[Sighting]:
    rewards, errors = history.curves.get(HELDOUT, Curve()), history.curves.get(HELDOUT_ERROR, Curve())
    if len(rewards.values) < 2 or len(errors.values) != len(rewards.values):
        return []
    best = max(range(len(rewards.values)), key=rewards.values.__getitem__)
    top, now = rewards.values[best], rewards.values[-1]
    limit = max(SMALLEST_FALL, choice.heldout_errors * math.hypot(errors.values[best], errors.values[-1]))
    if top - now <= limit:
        return []
    window = [rewards.steps[best], rewards.steps[-1]]
    sentence = f"The held-out reward is {now:.3f} at step {window[1]}, down from {top:.3f} at step {window[0]}."
    evidence = {"curve": HELDOUT, "value": now, "limit": top - limit, "best": top, "window": window}
    return [Sighting("heldout_regression", sentence, window[0], evidence)]


def heldout_gap(history: CurveHistory, choice: AlarmsChoice) -> list[Sighting]:
    """Compare the gap of the last two held-out evaluations with the first one."""
    rewards, errors = history.curves.get(HELDOUT, Curve()), history.curves.get(HELDOUT_ERROR, Curve())
    gaps = []  # (step, training minus held-out reward, standard error)
    for step, value, error in zip(rewards.steps, rewards.values, errors.values, strict=False):
        trained = history.mean_between("reward", step - 9, step)
        if step > 0 and trained is not None:
            gaps.append((step, trained - value, error))
    if len(gaps) < 3:
        return []
    first, (previous, before, _), (now, gap, error) = gaps[0][1], gaps[-2], gaps[-1]
    limit = max(choice.gap_limit, GAP_ERRORS * error)
    if min(before, gap) - first <= limit:
        return []
    sentence = (
        f"The training reward minus the held-out reward is {gap:+.3f} at step {now}, compared with {first:+.3f} in the "
        "first held-out evaluation."
    )
    evidence = {"curve": HELDOUT, "value": gap, "limit": first + limit, "window": [previous, now]}
    return [Sighting("heldout_gap", sentence, gaps[-3][0], evidence)]


def warm_up_flat(history: CurveHistory, choice: AlarmsChoice, *, steps: int) -> list[Sighting]:
    """Check the loss of a warm-up of `steps` steps after its first third."""
    curve = history.curves.get("sft/loss")
    if curve is None or len(curve.values) < 6 or curve.steps[-1] < steps / 3:
        return []
    first, late = curve.values[0], statistics.fmean(curve.values[-(len(curve.values) // 3) :])
    limit = (1 - choice.warm_up_progress) * first
    if late <= limit:
        return []
    sentence = f"After {curve.steps[-1]} of {steps} warm-up steps the loss is {late:.3g}; it started at {first:.3g}."
    evidence = {"curve": "sft/loss", "value": late, "limit": limit, "window": [curve.steps[0], curve.steps[-1]]}
    return [Sighting("warm_up_flat", sentence, 0, evidence)]


LIMITS = {
    "no_variance": ("groups/no_variance", "no_variance_share", "All rewards are equal in {:.0%} of the groups"),
    "truncation": ("completions/truncated", "truncation_share", "{:.0%} of the episodes hit the token limit"),
    "divergence": ("divergence", "divergence_limit", "The divergence from the policy before GRPO is {:.2g} nats/token"),
    "entropy_collapse": ("entropy", "entropy_floor", "The entropy is {:.3g} nats per token"),
    "entropy_explosion": ("entropy", "entropy_ceiling", "The entropy is {:.3g} nats per token"),
    "length_growth": (LENGTH, "length_ceiling", "Episodes average {:.0f} generated tokens"),
    "length_collapse": (LENGTH, "length_floor", "Episodes average {:.0f} generated tokens"),
}
"""Alarms on the current mean of a curve: the curve, the setting with its limit, and the sentence."""
BROKEN: dict[str, Check] = {"not_finite": not_finite, "failed_rollouts": failed_rollouts}
TRENDS: dict[str, Check] = {
    **{name: partial(_beyond_limit, name, *limit) for name, limit in LIMITS.items()},
    "importance_ratio": importance_ratio,
    "gradient_norm": gradient_norm,
    "format_fall": format_fall,
    "column_fall": column_fall,
}
"""Checked after the grace period."""
HELDOUT_CHECKS: dict[str, Check] = {"heldout_regression": heldout_regression, "heldout_gap": heldout_gap}


@dataclass(slots=True)
class AlarmWatch:
    """Reports a condition once when it begins, and again only after it has cleared."""

    history: CurveHistory
    calm: dict[str, int] = field(default_factory=dict)
    """Each condition that holds → consecutive checks that did not meet it."""

    def check(
        self, step: int, figures: Mapping[str, float], choice: AlarmsChoice, *, is_heldout: bool = False
    ) -> tuple[list[Sighting], list[str]]:
        """Check the conditions of a step, or those of a held-out evaluation, which clear at once.

        Returns the conditions that begin, and the names of conditions that end.
        """
        checks, patience = (HELDOUT_CHECKS, 1) if is_heldout else (BROKEN, CALM_STEPS)
        if not is_heldout and step > choice.grace_steps:
            checks = BROKEN | TRENDS
        self.history.add(step, figures)
        enabled = [check for name, check in checks.items() if action_of(choice, name)]
        met = {sighting.condition: sighting for check in enabled for sighting in check(self.history, choice)}
        begun, ended = [sighting for condition, sighting in met.items() if condition not in self.calm], []
        for condition in [each for each in self.calm if each.partition("/")[0] in checks and each not in met]:
            self.calm[condition] += 1
            if self.calm[condition] >= patience:
                del self.calm[condition]
                ended.append(condition)
        self.calm |= dict.fromkeys(met, 0)
        return begun, ended
