"""All alarms over one run, step by step: once for each time that a condition begins, again only after it cleared."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from backend.domain.training.alarms import AlarmsChoice, action_of
from workers.training.alarms import falls, heldout, lengths, spread, updates
from workers.training.alarms.history import History
from workers.training.alarms.sighting import Look, Sighting

BROKEN: tuple[Look, ...] = (updates.not_finite, updates.failed_rollouts)
"""Looked for from the first step on."""
TRENDS: tuple[Look, ...] = (
    spread.no_variance,
    spread.entropy_collapse,
    spread.entropy_explosion,
    lengths.length_growth,
    lengths.length_collapse,
    lengths.truncation,
    updates.divergence,
    updates.importance_ratio,
    updates.gradient_norm,
    falls.format_fall,
    falls.column_fall,
)
EXAMINED: tuple[Look, ...] = (heldout.heldout_regression, heldout.heldout_gap)
CALM_STEPS = 5
"""A condition that was not met for so long is over."""


@dataclass(frozen=True, slots=True)
class Change:
    """What is different after a look."""

    begun: list[Sighting] = field(default_factory=list)
    over: list[str] = field(default_factory=list)
    """Conditions."""


@dataclass(slots=True)
class AlarmWatch:
    """What is known of a run, and which conditions hold."""

    history: History
    calm: dict[str, int] = field(default_factory=dict)
    """Each condition that holds → looks in a row at which it was not met."""

    def after_step(self, step: int, figures: Mapping[str, float], choice: AlarmsChoice) -> Change:
        self.history.add(step, figures)
        return self._look(BROKEN + (TRENDS if step > choice.grace_steps else ()), choice, patience=CALM_STEPS)

    def after_examination(self, step: int, figures: Mapping[str, float], choice: AlarmsChoice) -> Change:
        self.history.add(step, figures)
        return self._look(EXAMINED, choice, patience=1)

    def _look(self, looks: tuple[Look, ...], choice: AlarmsChoice, *, patience: int) -> Change:
        wanted = [look for look in looks if action_of(choice, name_of(look))]
        met = {sighting.condition: sighting for look in wanted for sighting in look(self.history, choice)}
        begun = [sighting for condition, sighting in met.items() if condition not in self.calm]
        over = self._rest({name_of(look) for look in looks}, set(met), patience)
        self.calm |= dict.fromkeys(met, 0)
        return Change(begun, over)

    def _rest(self, names: set[str], met: set[str], patience: int) -> list[str]:
        """Count the looks without a condition, and forget those that are over."""
        over = []
        for condition in [each for each in self.calm if each.partition("/")[0] in names and each not in met]:
            self.calm[condition] += 1
            if self.calm[condition] >= patience:
                del self.calm[condition]
                over.append(condition)
        return over


def name_of(look: Look) -> str:
    """A look is named as its alarm."""
    return look.__name__
