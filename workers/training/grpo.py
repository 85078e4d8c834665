"""The GRPO stage: every step plays and stores groups, runs detectors and alarms, and some end with an evaluation."""

import json
import shutil
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from backend.checkpoints.tables import Checkpoint
from backend.domain.detectors.catalogue.cheat_rate import cheat_points
from backend.domain.detectors.run_view import HeldoutResult
from backend.domain.detectors.spec import Action
from backend.domain.rollouts.rollout import Rollout
from backend.domain.training.configuration import Recipe, Stage
from backend.domain.vocabulary import Phase
from workers.models.load import Loaded
from workers.models.vllm_adapters import AdapterServer
from workers.storage.detectors import record_flags, resume_scanner
from workers.storage.rollouts import rollout_id
from workers.storage.steering import record_screened
from workers.training.ahead import SampleAhead
from workers.training.assignment import Assignment
from workers.training.checkpoints import reached_step
from workers.training.context import TrainingContext, TrainingStopped
from workers.training.curriculum import Planner, replay, save_plan
from workers.training.detector_actions import ENDING, Screening, Verdicts, interventions_of, suspicions_of
from workers.training.env_pool import EnvPool
from workers.training.grpo_batch import GrpoControls, GrpoRun, GrpoStep
from workers.training.hardware import resolve_hardware
from workers.training.ranks import Ranks, StageOrder, play_together
from workers.training.reporting import ETA_STEPS, BackgroundWriter, seconds_left, step_figures
from workers.training.sampler import SamplingProcess, training_policy
from workers.training.self_play import SelfPlay
from workers.training.steering import Steering
from workers.training.teacher import load_teacher, score_rollouts
from workers.training.trl_base import Clock
from workers.training.trl_grpo import train_grpo


def run_grpo(context: TrainingContext, start: Checkpoint) -> None:
    """Run GRPO from the weights of `start`, or from the trainer's last saved state."""
    last = context.store.find(Stage.GRPO, context.configuration.grpo.steps)
    if last is not None and last.heldout:
        return
    reached = reached_step(context.assignment.folder / Stage.GRPO, context.configuration.grpo.updates)
    context.budget_tracker.restore(context.assignment.run_id, reached)
    if reached or not context.is_used_up():
        GrpoStage(context, start, reached).run()


def grpo_run(assignment: Assignment, order: StageOrder, ranks: Ranks, loaded: Loaded, env_pool: EnvPool) -> GrpoRun:
    """Return the stage of an order, as it is on every rank. The model in training is its policy."""
    configuration, choice = assignment.configuration, assignment.configuration.grpo
    if configuration.recipe is Recipe.DISTILLATION:  # the teacher takes the place of the reference and of rewards
        choice = choice.model_copy(update={"beta": 0.0, "credit": "episode", "replace_uniform": 0})
    hardware = replace(resolve_hardware(configuration.hardware), checkpoints_gradients=order.checkpoints_gradients)
    policy = training_policy(configuration, loaded)
    return GrpoRun(
        model=loaded[0],
        tokenizer=loaded[1],
        choice=choice.model_copy(update={"micro_batches": order.micro_batches}),
        columns=assignment.columns,
        seed=configuration.seed,
        folder=Path(order.folder),
        save_every=configuration.checkpoints.every,
        columns_of=assignment.columns_of if assignment.is_mixed else None,
        policy=policy,
        hardware=hardware,
        ranks=ranks,
        play_plans=lambda step, plans: env_pool.play_in_lockstep(
            plans, policy, phase=Phase.TRAIN, seed=configuration.seed, training_step=step
        ),
    )


class GrpoStage:
    def __init__(self, context: TrainingContext, start: Checkpoint, reached: int) -> None:
        self.context, self.reached = context, reached
        self.folder = context.assignment.folder / Stage.GRPO
        assignment, configuration = context.assignment, context.configuration
        self._scanner = resume_scanner(assignment.run_id, before_step=reached + 1)
        self._environments = {env.tag: env.name for env in assignment.envs}
        self._step_ends = deque([(reached, time.monotonic())], maxlen=ETA_STEPS + 1)
        self._planner = Planner(assignment.envs, configuration)
        branch = assignment.branch
        run_id = branch.source_run_id if branch and reached <= branch.step else assignment.run_id
        plan = self.folder / "plans" / f"{reached}.json"
        if reached and plan.exists():
            self._planner.restore(json.loads(plan.read_text()))
        elif reached:
            replay(self._planner, run_id, reached)
        self._controls = GrpoControls()
        self._steering = Steering(context, self._controls)
        self._steering.begin(reached)
        settings = self._steering.settings
        self._order = StageOrder(
            stage=Stage.GRPO,
            weights=str(context.store.folder_of(start)),
            folder=str(self.folder),
            micro_batches=settings.grpo.micro_batches,
            checkpoints_gradients=settings.hardware.gradient_checkpointing,
        )
        weights = context.store.load(start)
        self._run = grpo_run(assignment, self._order, context.ranks, weights, context.env_pool)
        self._self_play = SelfPlay(context, start, reached) if configuration.self_play.every else None
        self._verdicts = Verdicts([env.version_id for env in assignment.envs])
        mixed = self._environments if assignment.is_mixed else {}
        self._screening = Screening(assignment.run_id, self._scanner, self._verdicts, self._actions, mixed)
        self._writer = BackgroundWriter()
        self._clock = Clock()
        self._ahead: SampleAhead | None = None
        self._is_used_up = False

    def run(self) -> None:
        """Train until the last step, or until a person, an alarm or the budget ends the run."""
        context, configuration, choice = self.context, self.context.configuration, self._run.choice
        self._steering.raise_ending()  # an alarm was raised before the process was killed
        context.recorder.log(
            f"GRPO: {choice.steps} steps of {choice.tasks_per_step} tasks x {choice.group_size} episodes, "
            f"{context.env_pool.capacity} at a time"
            + (f", sampled {choice.staleness} ahead by a second process" if choice.staleness else "")
        )
        context.ranks.decide(lambda: asdict(self._order))
        process = SamplingProcess(context.assignment.run_id, Path(self._order.weights))
        if context.configuration.samples_ahead:
            self._ahead = SampleAhead(choice=choice, folder=self.folder, plan=self._planner.plans, play=process.play)
        run = replace(
            self._run,
            play=self._play,
            on_step=self._on_step,
            before_save=self._writer.wait,
            masked=self._verdicts.wrongly_rewarded,
            screened=self._screening.screened,
            controls=self._controls,
            ahead=self._ahead,
            vllm=configuration.vllm if configuration.engine == "vllm" and configuration.vllm.mode != "lora" else None,
            score=self._load_teacher() if configuration.recipe is Recipe.DISTILLATION else None,
        )
        try:
            with ExitStack() as stack:
                if self._ahead is not None:
                    stack.enter_context(self._ahead)
                    stack.enter_context(process)  # it ends first: then nothing is being sampled
                if configuration.engine == "vllm" and configuration.vllm.mode == "lora":
                    run = self._with_adapter_server(run, stack)
                stack.enter_context(self._writer)
                train_grpo(run)
        finally:
            context.env_pool.close_policy(self._run.policy)
            if self._self_play is not None:
                self._self_play.close()
        if self.reached < choice.steps and not self._is_used_up:
            self._steering.raise_ending()
            raise TrainingStopped
        shutil.rmtree(self.folder, ignore_errors=True)

    def _with_adapter_server(self, run: GrpoRun, stack: ExitStack) -> GrpoRun:
        """Sample at the vLLM server of the settings, which gets the adapter before each step."""
        sampling = self._run.choice.model_dump(include={"temperature", "top_p", "top_k"})
        assert run.policy is not None
        address, end = self.context.configuration.vllm.server, run.policy.chat.end
        server = AdapterServer(address, self.folder / "adapters", end=end, **sampling)
        server.check()
        stack.callback(server.close)
        run.policy.sample_with(server)
        return replace(run, sync_sampler=partial(server.swap, run.model))

    def _load_teacher(self) -> Callable[[Sequence[Rollout]], list[list[float]]]:
        choice, tokenizer = self.context.configuration.distillation, self._run.tokenizer
        self.context.recorder.progress(phase="loading the teacher", done=0, total=1)
        teacher = load_teacher(choice, tokenizer)
        self.context.recorder.log(f"distillation from {choice.described}")
        return partial(score_rollouts, teacher, end=int(tokenizer.eos_token_id), clip=choice.clip)

    def _play(self, step: int, ordinals: Sequence[int]) -> list[Rollout]:
        self._scanner.tune(self._steering.settings.detectors.thresholds)
        if self._ahead is not None:
            return self._ahead.take(step)
        plans = self._planner.plans(step, ordinals)
        if self._self_play is not None:
            assert self._run.policy is not None
            return self._self_play.play(step, plans, self._run.policy)
        return play_together(self.context.ranks, step, plans, self._run.play_plans)

    def _on_step(self, step: GrpoStep) -> bool:
        """Store the step, run detectors, update the planner, steer and evaluate. Returns whether to continue."""
        context, recorder, counts = self.context, self.context.recorder, self._clock.counts
        number, total, tracker = step.step, self._run.choice.steps, self.context.budget_tracker
        run_id, self.reached = context.assignment.run_id, number
        with counts("storing"):
            figures = step_figures(step, [column.name for column in context.assignment.columns], self._environments)
        with counts("steering"):
            planned = self._planner.learn(number, step.rollouts)
            if self._self_play is not None:
                planned |= self._self_play.learn(number, step.rollouts, (self._run.model, self._run.tokenizer))
            tracker.add(step.rollouts)
            self._is_used_up = context.is_used_up()
        with counts("storing"):
            summary = (f"reward {figures['reward']:.3f}", tracker.spending.summary(tracker.choice))
            message = ", ".join(filter(None, summary))
            self._step_ends.append((number, time.monotonic()))
            more = {"seconds_left": seconds_left(self._step_ends, total)}

            def write() -> None:
                recorder.store(step.rollouts)
                recorder.metrics(number, figures | planned)
                recorder.progress(phase="grpo", done=number, total=total, message=message, more=more)

            self._writer.write(write)  # while the next step is played
        with counts("detectors"):
            ids = [rollout_id(run_id, rollout) for rollout in step.rollouts]
            drafts = self._screening.scan(number, self._screening.rows(ids, step.rollouts))
            if drafts:
                self._writer.wait()  # flags refer to the step's rollouts
            if record_flags(run_id, drafts):
                for draft in drafts:
                    recorder.log(f"flag {draft.detector}: {draft.sentence}", "warning")
            if screened := self._screening.interventions(step.rollouts, drafts):
                record_screened(run_id, number, screened)
            actions = self._actions()
            recorder.metrics(number, cheat_points(self._scanner.view, number))
        suspicions = suspicions_of(drafts, elsewhere=[name for name, action in actions.items() if action in ENDING])
        with counts("steering"):
            save_plan(self.folder, number, self._planner)
            interventions = interventions_of(drafts, actions)
            should_continue = self._steering.after_step(number, figures, suspicions, interventions)
        model, tokenizer = self._run.model, self._run.tokenizer
        if number % self._steering.settings.heldout.every == 0 or number == total or self._is_used_up:
            with counts("examination"):
                self._writer.wait()
                context.store.save(Stage.GRPO, number, model, tokenizer)
                heldout = context.evaluate_heldout(Stage.GRPO, number, model, tokenizer, at=number).metrics()
                if heldout:
                    result = HeldoutResult(number, heldout["heldout/reward"], heldout["heldout/reward_error"])
                    self._scanner.add_heldout(result)
                should_continue = self._steering.after_heldout(number, heldout) and should_continue
        elif not should_continue:
            context.store.save(Stage.GRPO, number, model, tokenizer)
        spent = self._clock.take()
        parts = ("storing", "detectors", "steering", "examination")
        recorder.metrics(number, {f"seconds/{name}": spent[name] for name in parts})
        return should_continue and not self._is_used_up

    def _actions(self) -> dict[str, Action]:
        choice = self._steering.settings.detectors
        settings = self._scanner.settings
        return {name: choice.action_of(name, force.action) for name, force in settings.items() if force.enabled}
