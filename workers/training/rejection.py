"""Rejection sampling: rounds that sample, keep the best episodes of each task and learn from them by SFT.

A round is sampled by the checkpoint of the round before. A run resumes at its last complete round, or in the middle of
learning: the examples of a round are kept with the trainer's states.
"""

import json
import math
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict

from backend.checkpoints.tables import Checkpoint
from backend.core.session import transaction
from backend.domain.detectors.spec import Action
from backend.domain.results.pass_at_k import REWARD, SuccessRule, default_rule
from backend.domain.rollouts.rollout import Rollout
from backend.domain.training.configuration import Stage
from backend.domain.training.rejection import SampledEpisode, best_of_tasks
from backend.domain.vocabulary import Phase, RunStatus
from backend.training.example_sources import conversations_of, own_episodes
from workers.models.chat import ChatTokens
from workers.models.load import Loaded
from workers.models.policy import LocalPolicy
from workers.storage.detectors import record_flags, resume_scanner
from workers.storage.rollouts import rollout_id
from workers.training.checkpoints import reached_step, replace_file
from workers.training.context import Ended, TrainingContext, TrainingOutcome, TrainingStopped, UsedUp
from workers.training.curriculum import Planner, replay
from workers.training.detector_actions import ENDING, Screening, Verdicts
from workers.training.example_sources import EXAMPLES_FILE, read_examples, write_examples
from workers.training.examples import BrokenStep, TrainingExample, example_of_conversation
from workers.training.grpo_batch import MASKED, SCREENED, GrpoStep
from workers.training.hardware import resolve_hardware
from workers.training.ranks import StageOrder
from workers.training.reporting import step_figures
from workers.training.sft import sft_run, train_sft

KEPT = "rejection_kept"
"""Metric of a rollout that its round learned from."""
ROUNDS_FILE = "rounds.json"


def run_rejection_sampling(context: TrainingContext, start: Checkpoint) -> None:
    """Run the rounds that are missing, from the weights of `start`."""
    stage = RejectionStage(context, start)
    for number in range(1, context.configuration.rejection.rounds + 1):
        if context.is_used_up():
            raise UsedUp
        stage.run_round(number)
    shutil.rmtree(stage.folder, ignore_errors=True)


class RejectionStage:
    """The rounds of one attempt at a run."""

    def __init__(self, context: TrainingContext, start: Checkpoint) -> None:
        self.context, self.choice = context, context.configuration.rejection
        self.folder = context.assignment.folder / Stage.ROUND
        self._start = self._latest = start
        assignment, configuration = context.assignment, context.configuration
        newest = context.store.find(Stage.ROUND)
        done = newest.step if newest else 0
        size = {"tasks_per_step": self.choice.tasks, "group_size": self.choice.samples}
        grpo = configuration.grpo.model_copy(update={**size, "levels": None, "replace_uniform": 0})
        self._planner = Planner(assignment.envs, configuration.model_copy(update={"grpo": grpo}))
        replay(self._planner, assignment.run_id, done)
        context.budget_tracker.restore(assignment.run_id, done)
        scanner = resume_scanner(assignment.run_id, before_step=done + 1)
        self._environments = {env.tag: env.name for env in assignment.envs}
        self._verdicts = Verdicts([env.version_id for env in assignment.envs])
        mixed = self._environments if assignment.is_mixed else {}
        self._screening = Screening(assignment.run_id, scanner, self._verdicts, self._actions, mixed)
        file = self.folder / ROUNDS_FILE
        self._rounds: list[dict[str, float | None]] = json.loads(file.read_text()) if file.exists() else []

    def run_round(self, number: int) -> None:
        """Sample, learn and evaluate, unless the round is complete."""
        context, folder = self.context, self.folder / str(number)
        checkpoint = context.store.find(Stage.ROUND, number)
        if checkpoint is None:
            examples = read_examples(folder) if (folder / EXAMPLES_FILE).exists() else self._collect(number)
            checkpoint = self._learn(number, examples)
        if not checkpoint.heldout:
            loaded = context.store.load(checkpoint)
            evaluation = context.evaluate_heldout(Stage.ROUND, number, *loaded, at=number)
            rows = [row for row in self._rounds if row["round"] == number]
            for row in rows:
                row["heldout"] = evaluation.reward.mean if evaluation.reward else None
                row["success"] = evaluation.success.mean if evaluation.success else None
            replace_file(self.folder / ROUNDS_FILE, json.dumps(self._rounds))
        context.summary["rounds"] = self._rounds
        self._latest = checkpoint
        shutil.rmtree(folder, ignore_errors=True)

    def _collect(self, number: int) -> list[TrainingExample]:
        """Sample the round's episodes, and return the best as examples. Raises BrokenStep if none passes."""
        context, run_id, began = self.context, self.context.assignment.run_id, time.monotonic()
        rollouts, chat = self._sample(number)
        seconds = time.monotonic() - began
        ids = [rollout_id(run_id, rollout) for rollout in rollouts]
        masked = {ids[position] for position in self._verdicts.wrongly_rewarded(rollouts)}
        screened = {ids[position] for position in self._screening.screened(number, rollouts)} - masked
        by_id = dict(zip(ids, rollouts, strict=True))
        rules = {env.tag: self._rule(default_rule(env.manifest)) for env in context.assignment.envs}
        with transaction() as session:
            passing = own_episodes(session, run_id, self.choice.where, training_step=number)
        episodes = []
        for id_ in passing:
            rollout = by_id.get(id_)
            if rollout is None or id_ in masked | screened or rollout.reward is None:
                continue
            if rules[rollout.task.version_id].is_met(rollout.reward, rollout.columns):
                replies = tuple(step.reply for step in rollout.steps)
                episodes.append(SampledEpisode(id_, rollout.group, rollout.reward, replies))
        kept = [episode.id for episode in best_of_tasks(episodes, self.choice.keep)]
        with transaction() as session:
            found = [example_of_conversation(each, chat) for each in conversations_of(session, kept)]
        examples = [example for example in found if example is not None]
        context.recorder.mark_rollouts({KEPT: kept, MASKED: [*masked, *screened], SCREENED: list(screened)})
        solved = len({by_id[id_].group for id_ in kept})
        tasks = len({rollout.group for rollout in rollouts if not rollout.task.is_canary})
        for rollout, id_ in zip(rollouts, ids, strict=True):
            marks = {MASKED: id_ in masked | screened, SCREENED: id_ in screened}
            rollout.metrics |= {name: 1.0 for name, applies in marks.items() if applies}
        names = [column.name for column in context.assignment.columns]
        parts = {"rollouts": seconds, "step": seconds}
        figures = step_figures(GrpoStep(number, rollouts, {}, parts), names, self._environments)
        figures |= self._planner.learn(number, rollouts)
        figures |= {
            "rounds/kept": len(kept) / max(1, len(rollouts)),
            "rounds/solved": solved / max(1, tasks),
            "rounds/examples": float(len(examples)),
        }
        context.recorder.metrics(number, figures)
        context.recorder.log(
            f"round {number}: {len(rollouts):,} episodes, {len(episodes):,} pass, {len(kept):,} kept, from {solved:,} "
            f"of {tasks:,} tasks"
        )
        drafts = self._screening.scan(number, self._screening.rows(ids, rollouts))
        record_flags(run_id, drafts)
        context.budget_tracker.add(rollouts)
        if not examples:
            raise BrokenStep(
                f"no episode of round {number} is worth learning from: {len(episodes):,} of {len(rollouts):,} pass. "
                "Lower rejection.minimum_reward, sample more (rejection.samples), or start with SFT or easier levels"
            )
        row = {"round": number, "sampled": len(rollouts), "kept": len(kept), "tasks": tasks, "solved": solved}
        self._rounds = [each for each in self._rounds if each["round"] != number]
        self._rounds.append({**row, "reward": figures["reward"] if math.isfinite(figures["reward"]) else None})
        replace_file(self.folder / ROUNDS_FILE, json.dumps(self._rounds))
        write_examples(self.folder / str(number), examples, row)
        if ending := [draft for draft in drafts if self._actions().get(draft.detector) in ENDING]:
            reason = f"Detector {ending[0].detector}: {ending[0].sentence} Resume the run to learn from the round."
            raise Ended(TrainingOutcome(RunStatus.PAUSED, reason))
        return examples

    def _sample(self, number: int) -> tuple[list[Rollout], ChatTokens]:
        """Return all rollouts of the round, in parts between which the run may be stopped."""
        context, choice = self.context, self.choice
        loaded = context.store.load(self._latest)
        is_bf16 = resolve_hardware(context.configuration.hardware).is_bf16
        policy = LocalPolicy(*loaded, temperature=choice.temperature, lockstep=True, is_bf16=is_bf16)
        plans, rollouts = self._planner.plans(number), list[Rollout]()
        size = max(1, context.env_pool.capacity // choice.samples)
        try:
            for first in range(0, len(plans), size):
                done, total = first * choice.samples, len(plans) * choice.samples
                message = f"sampling round {number} of {choice.rounds}"
                context.recorder.progress(phase=message, done=done, total=total)
                rollouts += context.env_pool.play_in_lockstep(
                    plans[first : first + size],
                    policy,
                    phase=Phase.TRAIN,
                    seed=context.configuration.seed,
                    training_step=number,
                    recorder=context.recorder,
                )
                if context.recorder.should_stop():
                    raise TrainingStopped
        finally:
            context.env_pool.close_policy(policy)
        return rollouts, policy.chat

    def _rule(self, success: SuccessRule) -> SuccessRule:
        bar = self.choice.minimum_reward
        return success if bar is None else SuccessRule(REWARD, bar)

    def _learn(self, number: int, examples: list[TrainingExample]) -> Checkpoint:
        """Learn the examples with the trainer of SFT, and save the round's checkpoint."""
        context, recorder, folder = self.context, self.context.recorder, self.folder / str(number)
        choice, steps = self.choice, self.choice.steps_for(len(examples))
        start = self._latest if choice.start == "latest" else self._start
        loaded: Loaded = context.store.load(start)
        reached = reached_step(folder)

        def on_step(step: int, figures: dict[str, float]) -> bool:
            nonlocal reached
            reached = step
            if not math.isfinite(figures.get("loss", 0.0)):
                raise BrokenStep(f"the loss of round {number} is not a number: lower rejection.learning_rate")
            if figures:
                at = (number - 1) * choice.most_steps + step
                recorder.metrics(at, {f"sft/{name}": value for name, value in figures.items()})
            recorder.progress(phase=Stage.ROUND, done=step, total=steps, message=f"{number} of {choice.rounds}")
            return not recorder.should_stop() and not context.budget_tracker.used_up()

        recorder.log(f"round {number}: {steps:,} SFT steps of {choice.batch} out of {len(examples):,} episodes")
        order = StageOrder(
            stage=Stage.SFT,
            weights=str(context.store.folder_of(start)),
            examples=str(folder),
            folder=str(folder),
            steps=steps,
            seed=context.configuration.seed + number,
            save_every=max(context.configuration.checkpoints.every, steps // 10),
            checkpoints_gradients=context.configuration.hardware.gradient_checkpointing,
        )
        context.ranks.decide(lambda: asdict(order))
        run = sft_run(context.configuration, order, context.ranks, loaded, examples)
        run.on_step = on_step
        train_sft(run)
        if reached < steps and not context.is_used_up():
            raise TrainingStopped
        return context.store.save(Stage.ROUND, number, *loaded)

    def _actions(self) -> Mapping[str, Action]:
        choice, settings = self.context.configuration.detectors, self._screening.scanner.settings
        return {name: choice.action_of(name, force.action) for name, force in settings.items() if force.enabled}
