"""The GRPO stage: every step plays groups through the engine and stores them all; now and then an examination."""

import shutil
from collections.abc import Sequence

from backend.checkpoints.tables import Checkpoint
from backend.domain.detectors.catalogue.cheat_rate import cheat_points
from backend.domain.detectors.flags import FlagDraft
from backend.domain.detectors.run_view import HeldoutResult
from backend.domain.detectors.spec import Action
from backend.domain.rollouts.rollout import Rollout
from backend.domain.training.configuration import Stage
from workers.storage.detectors import record_flags, resume_scanner
from workers.storage.interventions import record_screened
from workers.storage.rollouts import rollout_id
from workers.training.alarms.intervening import ENDING, interventions_of
from workers.training.alarms.suspicion import suspicions_of
from workers.training.background_writer import BackgroundWriter
from workers.training.clock import Clock
from workers.training.context import Stopped, TrainingContext
from workers.training.grpo.stage import GrpoControls, GrpoRun, GrpoStep
from workers.training.hardware import settle
from workers.training.pace import EtaEstimator
from workers.training.planning.memory import PlanMemory
from workers.training.planning.planner import Planner
from workers.training.ranks.orders import GrpoOrder
from workers.training.ranks.playing import play_together
from workers.training.reporter import step_figures
from workers.training.sampling import training_player, training_sampler
from workers.training.screening import Screening
from workers.training.steering import Steering
from workers.training.trl_grpo import reached_step, train_grpo
from workers.training.verdicts import Verdicts


def run_grpo(bench: TrainingContext, start: Checkpoint) -> None:
    """GRPO from the start's weights, or from the trainer's last saved state."""
    last = bench.store.find(Stage.GRPO, bench.configuration.grpo.steps)
    if last is not None and last.heldout:
        return
    reached = reached_step(bench.folder_of(Stage.GRPO), bench.configuration.grpo)
    bench.budget_tracker.recall(bench.assignment.run_id, reached)
    if reached or not bench.is_used_up():
        Reinforcement(bench, start, reached).carry_out()


class Reinforcement:
    """One attempt at the stage, and what it holds between two steps."""

    def __init__(self, bench: TrainingContext, start: Checkpoint, reached: int) -> None:
        """`reached`: the step after which the trainer's newest state was saved."""
        self.bench, self.reached = bench, reached
        self.folder = bench.folder_of(Stage.GRPO)
        assignment = bench.assignment
        self._start = start
        self._model, self._tokenizer = bench.store.load(start)
        self._scanner = resume_scanner(assignment.run_id, before_step=reached + 1)
        self._environments = {env.tag: env.name for env in assignment.envs}
        self._pace = EtaEstimator(reached)
        self._planner, self._memory = Planner(assignment.envs, bench.configuration), PlanMemory(self.folder)
        self._memory.recall(reached, self._planner, assignment.player_of(reached))
        self._controls = GrpoControls()
        self._steering = Steering(bench, self._controls)
        self._steering.begin(reached)
        settings = self._steering.settings
        self.choice = bench.configuration.grpo.model_copy(update={"micro_batches": settings.grpo.micro_batches})
        self._hardware = settle(settings.hardware)
        self._policy = training_sampler(self._model, self._tokenizer, self.choice, self._hardware)
        self._verdicts = Verdicts([env.version_id for env in assignment.envs])
        mixed = self._environments if assignment.is_mixed else None
        self._screening = Screening(assignment.run_id, self._scanner, self._verdicts, self._actions, mixed)
        self._behind = BackgroundWriter()
        self._clock = Clock()
        """Of what is done between two steps."""
        self._is_used_up = False

    def carry_out(self) -> None:
        """Until the last step, or until somebody, an alarm or the budget ends it."""
        choice, bench = self.choice, self.bench
        self._steering.raise_ending()  # the process was killed before the run could rest
        bench.recorder.log(
            f"GRPO: {choice.steps} steps of {choice.tasks_per_step} tasks x {choice.group_size} episodes, "
            f"{bench.env_pool.capacity} at a time"
        )
        weights, parts = str(bench.store.folder_of(self._start)), choice.micro_batches
        order = GrpoOrder(weights, str(self.folder), parts, self._hardware.checkpoints_gradients)
        bench.ranks.tell(order.as_json())
        try:
            with self._behind:
                train_grpo(self._run())
        finally:
            bench.env_pool.close_policy(self._policy)
        if self.reached < choice.steps and not self._is_used_up:
            self._steering.raise_ending()
            raise Stopped
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self) -> GrpoRun:
        configuration, assignment = self.bench.configuration, self.bench.assignment
        return GrpoRun(
            model=self._model,
            tokenizer=self._tokenizer,
            choice=self.choice,
            columns=assignment.columns,
            seed=configuration.seed,
            folder=self.folder,
            save_every=configuration.checkpoints.every,
            play=self._play,
            on_step=self._on_step,
            before_save=self._behind.wait,
            masked=self._verdicts.wrongly_rewarded,
            screened=self._screening.screened,
            controls=self._controls,
            columns_of=assignment.columns_of if assignment.is_mixed else None,
            set_temperature=self._policy.set_temperature,
            hardware=self._hardware,
            vllm=configuration.vllm if configuration.engine == "vllm" else None,
            set_generation=self._policy.sample_with,
            ranks=self.bench.ranks,
        )

    def _play(self, step: int, ordinals: Sequence[int]) -> list[Rollout]:
        self._scanner.tune(self._steering.settings.detectors.thresholds)
        play = training_player(self.bench.env_pool, self._policy, self.bench.configuration.seed)
        return play_together(self.bench.ranks, step, self._planner.plans_of(step, ordinals), play)

    def _on_step(self, step: GrpoStep) -> bool:
        """Record, judge, learn what to play next, steer, examine. Returns whether to go on."""
        goes_on = self._after(step)
        spent = self._clock.take()
        parts = ("storing", "detectors", "steering", "examination")
        self.bench.recorder.metrics(step.step, {f"seconds/{name}": spent[name] for name in parts})
        return goes_on

    def _after(self, step: GrpoStep) -> bool:
        bench, self.reached, counts = self.bench, step.step, self._clock.counts
        columns = [column.name for column in bench.assignment.columns]
        with counts("storing"):
            figures = step_figures(step, columns, self._environments)
        with counts("steering"):
            planned = self._planner.learn(step.step, step.rollouts)
            bench.budget_tracker.pay(step.rollouts)
            self._is_used_up = bench.is_used_up()
        with counts("storing"):
            self._store(step, figures, planned)
        with counts("detectors"):
            drafts, actions = self._judge(step), self._actions()
            bench.recorder.metrics(step.step, cheat_points(self._scanner.view, step.step))
        suspicions = suspicions_of(drafts, elsewhere=[name for name, action in actions.items() if action in ENDING])
        with counts("steering"):
            self._memory.keep(step.step, self._planner)
            goes_on = self._steering.after_step(step.step, figures, suspicions, interventions_of(drafts, actions))
        if self._steering.is_examination_due(step.step) or step.step == self.choice.steps or self._is_used_up:
            with counts("examination"):
                goes_on = self._examine(step.step) and goes_on
        elif not goes_on:
            bench.store.save(Stage.GRPO, step.step, self._model, self._tokenizer)
        return goes_on and not self._is_used_up

    def _store(self, step: GrpoStep, figures: dict[str, float], planned: dict[str, float]) -> None:
        """Rollouts, curves and progress, while the next step is played."""
        recorder, total = self.bench.recorder, self.choice.steps
        message = ", ".join(filter(None, (f"reward {figures['reward']:.3f}", self.bench.budget_tracker.told)))
        left = {"seconds_left": self._pace.seconds_left(step.step, total)}

        def write() -> None:
            recorder.store(step.rollouts)
            recorder.metrics(step.step, figures)
            recorder.metrics(step.step, planned)
            recorder.progress(phase="grpo", done=step.step, total=total, message=message, more=left)

        self._behind.write(write)

    def _examine(self, step: int) -> bool:
        """A checkpoint with its examination. Returns whether to go on."""
        self._behind.wait()
        self.bench.store.save(Stage.GRPO, step, self._model, self._tokenizer)
        examination = self.bench.examine(Stage.GRPO, step, self._model, self._tokenizer, at=step)
        figures = examination.metrics()
        if figures:
            self._scanner.add_heldout(HeldoutResult(step, figures["heldout/reward"], figures["heldout/reward_error"]))
        return self._steering.after_examination(step, figures)

    def _judge(self, step: GrpoStep) -> list[FlagDraft]:
        """Let the detectors look at the step; what they find becomes flags."""
        run_id = self.bench.assignment.run_id
        ids = [rollout_id(run_id, rollout) for rollout in step.rollouts]
        drafts = self._screening.look(step.step, self._screening.rows(ids, step.rollouts))
        if drafts:
            self._behind.wait()  # flags refer to the step's rollouts
        if record_flags(run_id, drafts):
            for draft in drafts:
                self.bench.recorder.log(f"flag {draft.detector}: {draft.sentence}", "warning")
        if screened := self._screening.told(step.rollouts, drafts):
            record_screened(run_id, step.step, screened)
        return drafts

    def _actions(self) -> dict[str, Action]:
        """What follows from each detector's flags in the step under way."""
        choice = self._steering.settings.detectors
        settings = self._scanner.settings
        return {name: choice.action_of(name, force.action) for name, force in settings.items() if force.enabled}
