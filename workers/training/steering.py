"""Between two steps: raise alarms and act on them, follow requests and apply changed settings."""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from sqlalchemy import select

from backend.core.session import transaction
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
from backend.runs.tables import MetricPoint, Run
from backend.training.alarms import PREPARED
from backend.training.tables import Alarm
from workers.storage.steering import (
    AlarmDraft,
    ClaimedChange,
    accepted_patterns,
    active_alarms,
    claim_changes,
    claimed_changes,
    clear_alarms,
    close_interventions,
    open_interventions,
    prepared_branch,
    read_requests,
    record_alarm,
)
from workers.training.alarms import AlarmWatch, CurveHistory, Sighting, not_finite, warm_up_flat
from workers.training.context import Ended, TrainingContext, TrainingOutcome
from workers.training.detector_actions import DetectorIntervention
from workers.training.grpo_batch import GrpoControls

ENDINGS = {
    AlarmAction.PAUSE: RunStatus.PAUSED,
    AlarmAction.STOP: RunStatus.STOPPED,
    AlarmAction.ROLL_BACK: RunStatus.STOPPED,
}
SEVERITY = list(AlarmAction)
TEMPERATURES = ("grpo.temperature", "grpo.temperature_end")
STEP_CURVES = (
    *("reward", "format", "entropy", "divergence", "grad_norm", "completions/mean_length", "completions/truncated"),
    *("groups/no_variance", "rollouts/failed", "ratio/mean", "ratio/low_clip", "ratio/high_clip"),
)
"""Curves of steps that alarms read, except those of reward columns."""
HELDOUT_CURVES = ("heldout/reward", "heldout/reward_error")


def outcome_of(alarm: Alarm | Sighting, action: AlarmAction, alarm_id: uuid.UUID) -> TrainingOutcome:
    reason = f"Alarm {alarm.name}: {alarm.sentence}"
    prepared = alarm.evidence.get(PREPARED)  # checkpoint that a branch would start from, if a detector stopped the run
    if action is AlarmAction.STOP and isinstance(prepared, Mapping):
        checkpoint = f"{prepared['stage']} step {prepared['step']}"
        reason += f" A branch from {checkpoint}, the last honest checkpoint, is prepared: Roll back starts it."
    return TrainingOutcome(ENDINGS[action], reason, alarm_id if action is AlarmAction.ROLL_BACK else None)


def stored_figures(run_id: uuid.UUID, last: int, names: Iterable[str]) -> list[tuple[int, dict[str, float]]]:
    """Return each step's stored figures up to step `last`.

    A branch includes its source, unless that played another version of the environment with another reward scale.
    """
    by_step: dict[int, dict[str, float]] = {}
    wanted = set(names)
    with transaction() as session:
        parts: list[tuple[uuid.UUID, int, int]] = []
        run: Run | None = session.get_one(Run, run_id)
        while run is not None:
            if run.branch_step is None or run.source_run_id is None:
                parts.append((run.id, 0, last))
                break
            parts.append((run.id, run.branch_step + 1, last))
            last = min(last, run.branch_step)
            source = session.get(Run, run.source_run_id)
            run = source if source is not None and source.version_id == run.version_id else None
        for id_, first, end in reversed(parts):
            of_run = (MetricPoint.run_id == id_, MetricPoint.name.in_(wanted), MetricPoint.step.between(first, end))
            points = select(MetricPoint).where(*of_run).order_by(MetricPoint.step, MetricPoint.attempt)
            for point in session.scalars(points):  # later attempts replace earlier ones
                if point.value is not None:
                    by_step.setdefault(point.step, {})[point.name] = point.value
    return sorted(by_step.items())


class _StageSteering:
    """Alarms and changed settings of one stage. `settings` are the run's current settings."""

    def __init__(self, context: TrainingContext) -> None:
        self._context, self._run_id = context, context.assignment.run_id
        self._changes = claimed_changes(self._run_id)
        self.settings = context.configuration

    def _raise_alarm(
        self, step: int, sighting: Sighting, action: AlarmAction, changes: Sequence[ClaimedChange] = ()
    ) -> tuple[uuid.UUID, bool]:
        """Store an alarm with the settings that it changes. Return whether it is new: a resumed run repeats some."""
        name, sentence, condition = sighting.name, sighting.sentence, sighting.condition
        draft = AlarmDraft(name, step, sentence, action, condition, sighting.onset, sighting.evidence)
        alarm_id, is_new = record_alarm(self._run_id, draft, changes)
        if is_new:
            self._changes += changes
            self._context.recorder.log(f"alarm {name}: {sentence} Action: {action}.", "warning")
        return alarm_id, is_new

    def _claim_changes(self, step_of: Callable[[str], int | None]) -> None:
        """Claim waiting changes from their steps on. A None step keeps a change waiting."""
        for change in claim_changes(self._run_id, step_of):
            since = f"step {change.step}" if change.step else "the warm-up"
            self._context.recorder.log(f"{change.name}: {change.before} → {change.after} from {since} on")
            self._changes.append(change)


class Steering(_StageSteering):
    def __init__(self, context: TrainingContext, controls: GrpoControls) -> None:
        super().__init__(context)
        self._controls = controls
        self._columns = {column.name: column.weight for column in context.assignment.columns}
        self._watch = AlarmWatch(CurveHistory(self._columns, context.configuration.grpo.episodes_per_step))
        self._ending: tuple[AlarmAction, TrainingOutcome] | None = None
        self._patterns_let_pass: dict[str, set[str]] = {}

    def begin(self, reached: int) -> None:
        """Restore the state after step `reached`, and apply changes made since."""
        names = [*STEP_CURVES, *HELDOUT_CURVES, *(f"columns/{name}" for name in self._columns)]
        for step, figures in stored_figures(self._run_id, reached, names):
            self._apply(step)
            heldout = {name: figures.pop(name) for name in HELDOUT_CURVES if name in figures}
            if figures:
                self._watch.check(step, figures, self.settings.alarms)
            if heldout:
                self._watch.check(step, heldout, self.settings.alarms, is_heldout=True)
        self._claim_changes(lambda name: None if is_of_warm_up(name) else reached + 1)
        self._apply(reached + 1)
        close_interventions(self._run_id, reached)
        self._patterns_let_pass = accepted_patterns(self._run_id)
        for alarm in open_interventions(self._run_id, reached):
            self._consider(alarm, alarm.action, alarm.id)

    def after_step(
        self,
        step: int,
        figures: Mapping[str, float],
        suspicions: Sequence[Sighting] = (),
        interventions: Sequence[DetectorIntervention] = (),
    ) -> bool:
        """Return whether to continue. Raises Ended if the weights are spoiled and must not be saved."""
        begun, ended = self._watch.check(step, figures, self.settings.alarms)
        if action_of(self.settings.alarms, "suspicion"):
            begun.extend(suspicions)
        self._act(step, begun, ended)
        for intervention in interventions:
            detector = intervention.detector
            if intervention.patterns <= self._patterns_let_pass.get(detector, set()):
                continue  # someone let all flagged patterns pass before
            action = AlarmAction.PAUSE
            if intervention.action is Action.STOP_AND_ROLL_BACK:
                action = AlarmAction.ROLL_BACK if self.settings.detectors.start_branch else AlarmAction.STOP
            sighting = intervention.sighting
            onset, prepared = prepared_branch(self._run_id, detector, sighting.onset)
            sighting = replace(sighting, onset=onset, evidence={**sighting.evidence, PREPARED: prepared})
            self._consider(sighting, action, self._raise(step, sighting, action))
        requests = read_requests(self._run_id)
        later = {name for name in requests.changes if name in MEMORY or is_of_warm_up(name)}
        if requests.changes - later:  # the trainer is built with the others at its next start
            self._claim_changes(lambda name: None if name in MEMORY or is_of_warm_up(name) else step + 1)
        self._apply(step + 1)
        return not requests.stop and self._ending is None

    def after_heldout(self, step: int, figures: Mapping[str, float]) -> bool:
        self._act(step, *self._watch.check(step, figures, self.settings.alarms, is_heldout=True))
        self._apply(step + 1)
        return self._ending is None

    def raise_ending(self) -> None:
        """Raise Ended if an alarm ends the run."""
        if self._ending is not None:
            raise Ended(self._ending[1])

    def _act(self, step: int, begun: Sequence[Sighting], ended: Sequence[str]) -> None:
        if ended:
            clear_alarms(self._run_id, ended, step)
        for sighting in begun:
            action = action_of(self.settings.alarms, sighting.name) or AlarmAction.NOTE
            alarm_id = self._raise(step, sighting, action)
            if sighting.name == "not_finite":
                raise Ended(outcome_of(sighting, action, alarm_id))
            self._consider(sighting, action, alarm_id)

    def _raise(self, step: int, sighting: Sighting, action: AlarmAction) -> uuid.UUID:
        changes: list[ClaimedChange] = []
        if action is AlarmAction.LOWER_RATE:
            rate = self.settings.grpo.learning_rate
            changes = [ClaimedChange(LEARNING_RATE, rate, rate * self.settings.alarms.rate_factor, step + 1)]
        alarm_id, is_new = self._raise_alarm(step, sighting, action, changes)
        if is_new:
            self._apply(step + 1)  # two alarms in one step lower the rate twice
        return alarm_id

    def _consider(self, alarm: Alarm | Sighting, action: AlarmAction, alarm_id: uuid.UUID) -> None:
        """The most severe action ends the run, and of equal ones the first."""
        if action in ENDINGS and (not self._ending or SEVERITY.index(action) > SEVERITY.index(self._ending[0])):
            self._ending = action, outcome_of(alarm, action, alarm_id)

    def _apply(self, step: int) -> None:
        """Apply the settings of this step. A change belongs to its step in every attempt."""
        base = self._context.configuration
        valid = [change for change in self._changes if change.step <= step]
        self.settings = with_settings(base, [(change.name, change.after) for change in valid])
        self._controls.learning_rate_factor = self.settings.grpo.learning_rate / base.grpo.learning_rate
        is_changed = any(change.name in TEMPERATURES for change in valid)
        self._controls.temperature = self.settings.grpo.temperature_at(step) if is_changed else None
        self._context.budget_tracker.choice = self.settings.budget


class WarmUpSteering(_StageSteering):
    """Steers one warm-up attempt: alarms on spoiled or flat losses, and changed settings."""

    def __init__(self, context: TrainingContext, *, before: int, reached: int, steps: int) -> None:
        """`before`: steps of earlier attempts. `steps`: of this one, of which `reached` are done."""
        super().__init__(context)
        self._before, self._steps = before, steps
        self._history = CurveHistory({}, 0)
        for step, figures in stored_figures(self._run_id, before + reached, ["sft/loss"]):
            if step > before:
                self._history.add(step - before, figures)
        self._active = active_alarms(self._run_id, before + 1, before + steps)
        """Conditions that hold → the latest step at which they were raised."""
        self._claim(reached + 1, is_start=True)

    def rate_factor(self, step: int) -> float:
        """Return the factor of the scheduled learning rate. A change belongs to its step."""
        return self._settings_at(step).sft.learning_rate / self._context.configuration.sft.learning_rate

    def after_step(self, step: int, figures: Mapping[str, float]) -> None:
        """Raise Ended if an alarm ends the run; nothing is saved then."""
        if any(map(is_used_in_warm_up, read_requests(self._run_id).changes)):
            self._claim(step + 1, is_start=False)
        choice, at = self.settings.alarms, self._before + step
        self._history.add(step, {f"sft/{name}": value for name, value in figures.items()})
        sightings = not_finite(self._history, choice)
        if action_of(choice, "warm_up_flat"):
            sightings += warm_up_flat(self._history, choice, steps=self._steps)
        names = {sighting.name for sighting in sightings}
        # a resumed run passes steps before the alarm again
        ended = [name for name, since in self._active.items() if name not in names and at > since]
        if ended:
            clear_alarms(self._run_id, ended, at)
        for name in ended:
            del self._active[name]
        for sighting in sightings:
            if sighting.name in self._active and sighting.name != "not_finite":
                continue
            self._active[sighting.name] = at
            action = action_of(self.settings.alarms, sighting.name) or AlarmAction.NOTE
            if action is AlarmAction.ROLL_BACK:  # there is no checkpoint before the warm-up
                action = AlarmAction.PAUSE
            alarm_id, is_new = self._raise_alarm(at, sighting, action)
            if action in ENDINGS and (is_new or sighting.name == "not_finite"):  # else someone resumed the run
                raise Ended(outcome_of(sighting, action, alarm_id))

    def _claim(self, step: int, *, is_start: bool) -> None:
        """Claim waiting changes: those of the warm-up at this step, others at step 0 of GRPO if they are used now."""

        def step_of(name: str) -> int | None:
            if is_of_warm_up(name):
                return self._before + step
            return 0 if is_used_in_warm_up(name) or (is_start and name == RECOMPUTES) else None

        self._claim_changes(step_of)
        self.settings = self._settings_at(step)
        self._context.budget_tracker.choice = self.settings.budget

    def _settings_at(self, step: int) -> TrainingConfiguration:
        last = self._before + step
        valid = [each for each in self._changes if each.step <= (last if is_of_warm_up(each.name) else 0)]
        return with_settings(self._context.configuration, [(each.name, each.after) for each in valid])
