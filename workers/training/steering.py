"""Between two steps: alarms are raised and acted on, requests and changed settings are taken up."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from backend.domain.detectors.spec import Action
from backend.domain.training.alarms import action_of
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.steering import (
    LEARNING_RATE,
    MEMORY,
    RECOMPUTES,
    is_of_warm_up,
    is_used_in_warm_up,
    with_settings,
)
from backend.domain.vocabulary import AlarmAction, RunStatus
from backend.training.alarms import PREPARED
from backend.training.tables import Alarm
from workers.storage.interventions import accepted_patterns, close_interventions, open_interventions, prepared_branch
from workers.storage.steering import (
    AlarmDraft,
    AppliedChange,
    active_alarms,
    applied_changes,
    apply_changes,
    clear_alarms,
    read_requests,
    record_alarm,
)
from workers.training.alarms.history import History
from workers.training.alarms.intervening import Intervening
from workers.training.alarms.sighting import Sighting
from workers.training.alarms.stored import EXAMINED, NEEDED, stored_figures
from workers.training.alarms.updates import not_finite
from workers.training.alarms.warm_up import warm_up_flat
from workers.training.alarms.watch import AlarmWatch
from workers.training.context import Ended, TrainingContext
from workers.training.grpo.stage import GrpoControls

_ENDINGS = {AlarmAction.PAUSE: RunStatus.PAUSED, AlarmAction.STOP: RunStatus.STOPPED}
_ENDINGS[AlarmAction.ROLL_BACK] = RunStatus.STOPPED
_GRAVITY = list(AlarmAction)
TEMPERATURES = ("grpo.temperature", "grpo.temperature_end")


@dataclass(frozen=True, slots=True)
class Raised:
    """An alarm that was stored."""

    id: uuid.UUID
    name: str
    sentence: str
    action: AlarmAction
    prepared: Mapping[str, Any] | None = None
    """The checkpoint that a branch would go on from, where a detector stopped the run."""

    @classmethod
    def of(cls, alarm: Alarm) -> "Raised":
        return cls(alarm.id, alarm.name, alarm.sentence, alarm.action, alarm.evidence.get(PREPARED))

    def ended(self) -> Ended:
        """How the run ends by itself because of it."""
        roll_back = self.id if self.action is AlarmAction.ROLL_BACK else None
        reason = f"Alarm {self.name}: {self.sentence}"
        if self.action is AlarmAction.STOP and self.prepared:
            at = f"{self.prepared['stage']} step {self.prepared['step']}"
            reason += f" A branch from {at}, the last honest checkpoint, is prepared: Roll back starts it."
        return Ended(_ENDINGS[self.action], reason, roll_back)


class Steering:
    """Of one attempt at GRPO. `settings` are the run's choices as they are now."""

    def __init__(self, bench: TrainingContext, controls: GrpoControls) -> None:
        self._bench, self._controls = bench, controls
        self._run_id = bench.assignment.run_id
        self._columns = {column.name: column.weight for column in bench.assignment.columns}
        self._watch = AlarmWatch(History(self._columns, bench.configuration.grpo.episodes_per_step))
        self._changes = applied_changes(self._run_id)
        self._gravest: Raised | None = None
        self._let_pass: dict[str, set[str]] = {}
        self.settings = bench.configuration

    def begin(self, reached: int) -> None:
        """Know what the run knew after this step, take up what was changed since, and set what the next one uses."""
        names = [*NEEDED, *EXAMINED, *(f"columns/{name}" for name in self._columns)]
        for step, figures in stored_figures(self._run_id, reached, names):
            self._prepare(step)
            examined = {name: figures.pop(name) for name in EXAMINED if name in figures}
            if figures:
                self._watch.after_step(step, figures, self.settings.alarms)
            if examined:
                self._watch.after_examination(step, examined, self.settings.alarms)
        self._take_up(reached + 1, is_start=True)
        self._prepare(reached + 1)
        close_interventions(self._run_id, reached)
        self._let_pass = accepted_patterns(self._run_id)
        for alarm in open_interventions(self._run_id, reached):
            self._weigh(Raised.of(alarm))

    def after_step(
        self,
        step: int,
        figures: Mapping[str, float],
        suspicions: Sequence[Sighting] = (),
        interventions: Sequence[Intervening] = (),
    ) -> bool:
        """Whether to go on. Raises Ended when the weights are spoiled and must not be saved."""
        change = self._watch.after_step(step, figures, self.settings.alarms)
        suspected = suspicions if action_of(self.settings.alarms, "suspicion") else ()
        self._tell(step, [*change.begun, *suspected], change.over)
        for intervening in interventions:
            self._intervene(step, intervening)
        requests = read_requests(self._run_id)
        if any(name not in MEMORY and not is_of_warm_up(name) for name in requests.changes):
            self._take_up(step + 1, is_start=False)
        self._prepare(step + 1)
        return not requests.stop and self._gravest is None

    def after_examination(self, step: int, figures: Mapping[str, float]) -> bool:
        """Whether to go on."""
        change = self._watch.after_examination(step, figures, self.settings.alarms)
        self._tell(step, change.begun, change.over)
        self._prepare(step + 1)
        return self._gravest is None

    def _take_up(self, step: int, *, is_start: bool) -> None:
        """What the trainer is made with waits for its next start."""

        def step_of(name: str) -> int | None:
            return None if is_of_warm_up(name) or (name in MEMORY and not is_start) else step

        self._changes += taken_up(self._bench, step_of)

    def is_examination_due(self, step: int) -> bool:
        return step % self.settings.heldout.every == 0

    def raise_ending(self) -> None:
        """Raises Ended where an alarm ends the run."""
        if self._gravest is not None:
            raise self._gravest.ended()

    def _tell(self, step: int, begun: list[Sighting], over: list[str]) -> None:
        if over:
            clear_alarms(self._run_id, over, step)
        for sighting in begun:
            raised = self._record(step, sighting, action_of(self.settings.alarms, sighting.name) or AlarmAction.NOTE)
            if sighting.name == "not_finite":
                raise raised.ended()
            self._weigh(raised)

    def _intervene(self, step: int, intervening: Intervening) -> None:
        """A detector ends the run, unless people let all that it flagged pass before."""
        if intervening.patterns <= self._let_pass.get(intervening.detector, set()):
            return
        action = AlarmAction.PAUSE
        if intervening.action is Action.STOP_AND_ROLL_BACK:
            action = AlarmAction.ROLL_BACK if self.settings.detectors.start_branch else AlarmAction.STOP
        sighting = intervening.sighting
        onset, prepared = prepared_branch(self._run_id, intervening.detector, sighting.onset)
        sighting = replace(sighting, onset=onset, evidence={**sighting.evidence, PREPARED: prepared})
        self._weigh(self._record(step, sighting, action))

    def _weigh(self, raised: Raised) -> None:
        """The gravest of those that end the run is its reason."""
        if raised.action not in _ENDINGS:
            return
        if self._gravest is None or _GRAVITY.index(raised.action) > _GRAVITY.index(self._gravest.action):
            self._gravest = raised

    def _record(self, step: int, sighting: Sighting, action: AlarmAction) -> Raised:
        changes = [self._lower_rate(step + 1)] if action is AlarmAction.LOWER_RATE else []
        stored = record_alarm(self._run_id, draft_of(sighting, step, action), changes)
        if stored.is_new:
            self._changes += changes
            self._prepare(step + 1)  # two alarms of one step lower the rate twice
            self._bench.recorder.log(f"alarm {sighting.name}: {sighting.sentence} Action: {action}.", "warning")
        return Raised(stored.id, sighting.name, sighting.sentence, action, sighting.evidence.get(PREPARED))

    def _lower_rate(self, step: int) -> AppliedChange:
        before = self.settings.grpo.learning_rate
        return AppliedChange(LEARNING_RATE, before, before * self.settings.alarms.rate_factor, step)

    def _prepare(self, step: int) -> None:
        """Set what this step uses: a change belongs to its step, whichever attempt takes it."""
        base = self._bench.configuration
        valid = [change for change in self._changes if change.step <= step]
        self.settings = with_settings(base, [(change.name, change.after) for change in valid])
        self._controls.learning_rate_factor = self.settings.grpo.learning_rate / base.grpo.learning_rate
        is_changed = any(change.name in TEMPERATURES for change in valid)
        self._controls.temperature = self.settings.grpo.temperature_at(step) if is_changed else None
        self._bench.budget_tracker.choice = self.settings.budget


class WarmUpSteering:
    """Of one warm-up: what is broken or does not learn, and what may be changed meanwhile."""

    def __init__(self, bench: TrainingContext, *, before: int, reached: int, steps: int) -> None:
        """`before`: steps of earlier warm-ups of the run; `reached`, `steps`: of this one."""
        self._bench, self._before, self._steps = bench, before, steps
        self._run_id = bench.assignment.run_id
        self._history = History({}, 0)
        for at, figures in stored_figures(self._run_id, before + reached, ["sft/loss"]):
            if at > before:
                self._history.add(at - before, figures)
        self._standing = active_alarms(self._run_id, before + 1, before + steps)
        self._changes = applied_changes(self._run_id)
        self.settings = bench.configuration
        self._take_up(reached + 1, is_start=True)

    def rate_factor(self, step: int) -> float:
        """What the schedule's rate of this step is multiplied by. A change belongs to its step."""
        base = self._bench.configuration
        return self._settings_at(step).sft.learning_rate / base.sft.learning_rate

    def after_step(self, step: int, figures: Mapping[str, float]) -> None:
        """Raises Ended when an alarm ends the run; nothing is saved then."""
        if any(map(is_used_in_warm_up, read_requests(self._run_id).changes)):
            self._take_up(step + 1, is_start=False)
        choice = self.settings.alarms
        self._history.add(step, {f"sft/{name}": value for name, value in figures.items()})
        seen = not_finite(self._history, choice)
        if action_of(choice, "warm_up_flat"):
            seen += warm_up_flat(self._history, choice, steps=self._steps)
        self._let_go({sighting.name for sighting in seen}, self._before + step)
        for sighting in seen:
            if sighting.name not in self._standing or sighting.name == "not_finite":
                self._raise(self._before + step, sighting)

    def _let_go(self, seen: set[str], at: int) -> None:
        """What is over. A resumed run comes by steps again that were before the alarm."""
        over = [name for name, since in self._standing.items() if name not in seen and at > since]
        if over:
            clear_alarms(self._run_id, over, at)
        for name in over:
            del self._standing[name]

    def _raise(self, at: int, sighting: Sighting) -> None:
        """Ends the run where the alarm is to, unless whoever resumed it has seen this one."""
        self._standing[sighting.name] = at
        action = action_of(self.settings.alarms, sighting.name) or AlarmAction.NOTE
        if action is AlarmAction.ROLL_BACK:  # there is nothing before the warm-up
            action = AlarmAction.PAUSE
        stored = record_alarm(self._run_id, draft_of(sighting, at, action))
        if stored.is_new:
            self._bench.recorder.log(f"alarm {sighting.name}: {sighting.sentence} Action: {action}.", "warning")
        if action in _ENDINGS and (stored.is_new or sighting.name == "not_finite"):
            raise Raised(stored.id, sighting.name, sighting.sentence, action).ended()

    def _take_up(self, step: int, *, is_start: bool) -> None:
        """Changes of the warm-up's own settings have its steps; those of others are of the run from here on, which is
        step 0 of reinforcement. What only reinforcement uses waits for it."""

        def step_of(name: str) -> int | None:
            if is_of_warm_up(name):
                return self._before + step
            return 0 if is_used_in_warm_up(name) or (is_start and name == RECOMPUTES) else None

        self._changes += taken_up(self._bench, step_of)
        self.settings = self._settings_at(step)
        self._bench.budget_tracker.choice = self.settings.budget

    def _settings_at(self, step: int) -> TrainingConfiguration:
        last = self._before + step
        valid = [each for each in self._changes if each.step <= (last if is_of_warm_up(each.name) else 0)]
        return with_settings(self._bench.configuration, [(each.name, each.after) for each in valid])


def taken_up(bench: TrainingContext, step_of: Callable[[str], int | None]) -> list[AppliedChange]:
    """Changes that waited, from their steps on; the run's log tells of them."""
    changes = apply_changes(bench.assignment.run_id, step_of)
    for change in changes:
        since = f"step {change.step}" if change.step else "the warm-up"
        bench.recorder.log(f"{change.name}: {change.before} → {change.after} from {since} on")
    return changes


def draft_of(sighting: Sighting, step: int, action: AlarmAction) -> AlarmDraft:
    return AlarmDraft(
        name=sighting.name,
        step=step,
        sentence=sighting.sentence,
        action=action,
        condition=sighting.condition,
        onset=sighting.onset,
        evidence=sighting.evidence,
    )
