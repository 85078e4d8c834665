"""One training run in its own process: `python -m workers.training.run <run id>`.

Started again for the same run, it resumes from the run's checkpoints and saved states. A run in several processes
starts this module in each of them: the first leads and the others follow.
"""

import asyncio
import gc
import logging
import os
import shutil
import sys
import time
import uuid
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NoReturn

import structlog
import torch
from sqlalchemy import select
from torch import distributed
from torch.distributed.elastic.multiprocessing.errors import record
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from backend.checkpoints.tables import Checkpoint
from backend.core.logs import configure_logging
from backend.core.session import transaction
from backend.domain.environments.prompts import render_unparsable
from backend.domain.rollouts.rollout import Rollout
from backend.domain.training.alarm_kinds import ALARM_KINDS
from backend.domain.training.alarms import action_of
from backend.domain.training.configuration import Recipe, Stage
from backend.domain.vocabulary import AlarmAction, Phase, RunStatus
from backend.errors import Conflict
from backend.runs.service import finish_run
from backend.runs.tables import Run
from backend.training.alarms import roll_back
from backend.training.branches import MOST_IN_A_ROW, depth_of
from backend.training.steering import current_settings
from backend.training.tables import Alarm
from workers.models.build import build_model, build_tokenizer
from workers.models.chat import ChatTokens
from workers.models.load import ModelUnusable, load_folder, start_from_base, start_from_checkpoint
from workers.policies.scripted import ScriptedPolicy
from workers.rollouts.engine import TooManyFailures
from workers.storage.recorder import RunRecorder
from workers.storage.steering import AlarmDraft, mark_interventions_seen, read_requests, record_alarm
from workers.training.assignment import Assignment, read_assignment, training_folder
from workers.training.checkpoints import COMPLETE, discard_incomplete, is_disk_full, take_over
from workers.training.context import Ended, TrainingContext, TrainingOutcome, TrainingStopped, UsedUp
from workers.training.curriculum import single_plans
from workers.training.dpo import run_dpo
from workers.training.env_pool import check_capacity, open_env_pool
from workers.training.example_sources import conversations, read_examples
from workers.training.examples import BrokenStep
from workers.training.grpo import grpo_run, run_grpo
from workers.training.hardware import select_device
from workers.training.ranks import Ranks, StageOrder, follow_leader, join, lead
from workers.training.rejection import run_rejection_sampling
from workers.training.sampler import INFRASTRUCTURE_ERRORS
from workers.training.sft import check_gate, run_sft, sft_run, train_sft
from workers.training.trl_grpo import train_grpo

MEMORY_PHRASES = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")
CRASHED_AT = "crashed_at"  # key of a run's summary: the newest saved state and checkpoint at its last crash
LEADER_SECONDS = 10.0  # pause after a follower's error: the leader often has the same error and records it
READING_EPISODES = 96  # scripted episodes whose text a new tokenizer is built from
READING_CONVERSATIONS = 400  # stored conversations of each source that a new tokenizer is built from

logger = structlog.get_logger(__name__)


def train(run_id: uuid.UUID) -> TrainingOutcome:
    assignment = read_assignment(run_id)
    recorder = RunRecorder(run_id)
    torch.set_num_threads(assignment.configuration.threads)
    summary: dict[str, object] = {}
    try:
        select_device(assignment.configuration.hardware)
        ranks = join()
        recorder.progress(phase="preparing the environment", done=0, total=1)
        if (playing := ranks.count + assignment.configuration.samples_ahead) > 1:
            asyncio.run(check_capacity(assignment, playing))
        with open_env_pool(assignment.envs, assignment.configuration) as env_pool:
            context = TrainingContext(assignment, env_pool, recorder, summary, ranks)
            try:
                run_stages(context)
            finally:
                context.budget_tracker.save()  # time counts however the attempt ends
        budget = summary.get("budget")
        used_up = budget.get("used_up") if isinstance(budget, dict) else None
        note = f"{used_up} The last held-out evaluation is of the policy at that point." if used_up else None
        outcome = TrainingOutcome(RunStatus.COMPLETED, note)
    except TrainingStopped:
        outcome = stopped_on_request(run_id)
    except Ended as ended:
        [outcome] = ended.args
    except TooManyFailures as error:
        outcome = TrainingOutcome(RunStatus.PAUSED, f"Paused because too many rollouts failed. {error}")
    except INFRASTRUCTURE_ERRORS:
        raise
    except Exception as error:
        logger.exception("training failed")
        message = f"{type(error).__name__}: {error}"
        if is_out_of_memory(error):
            outcome = out_of_memory(run_id, error)
        elif is_disk_full(error):
            outcome = disk_full(assignment.folder, error)
        elif should_retry(run_id, assignment.folder, error):
            recorder.log(f"crashed, and continues from its last saved state. {message}", "error")
            raise
        else:
            outcome = TrainingOutcome(RunStatus.FAILED, message)
    outcome = finish(run_id, outcome, summary)
    level = "error" if outcome.status is RunStatus.FAILED else "info"
    recorder.log(f"{outcome.status}. {outcome.reason or ''}".strip(), level)
    if outcome.status is RunStatus.COMPLETED:
        shutil.rmtree(assignment.folder, ignore_errors=True)
    return outcome


def run_stages(context: TrainingContext) -> None:
    configuration, recipe = context.configuration, context.configuration.recipe
    if point := context.assignment.branch:
        folder, every = context.assignment.folder / Stage.GRPO, configuration.checkpoints.every
        is_sharded = configuration.hardware.sharding != "none"
        if state := take_over(point, folder, configuration.grpo, save_every=every, is_sharded=is_sharded):
            context.recorder.log(f"continues from step {point.step} of the source run, with {state}")
        with transaction() as session:
            start = session.get_one(Checkpoint, point.checkpoint_id if point.step == 0 else point.start_id)
        run_grpo(context, start)
    else:
        with suppress(UsedUp):
            checkpoint = context.store.find(Stage.UNTRAINED, 0)
            if checkpoint is None:
                model, tokenizer = starting_weights(context)
                ChatTokens(tokenizer)  # rejects a template that cannot render a conversation
                checkpoint = context.store.save(Stage.UNTRAINED, 0, model, tokenizer)
                del model, tokenizer
            if not checkpoint.heldout:
                at = None if recipe.has_sft else 0
                context.evaluate_heldout(Stage.UNTRAINED, 0, *context.store.load(checkpoint), at=at)
            if recipe.has_sft:
                checkpoint = run_sft(context, checkpoint)
            if recipe.has_sft and recipe.has_grpo:
                check_gate(context, checkpoint)
            if recipe.has_grpo:
                run_grpo(context, checkpoint)
            if recipe is Recipe.REJECTION_SAMPLING:
                run_rejection_sampling(context, checkpoint)
            if recipe is Recipe.DPO:
                run_dpo(context, checkpoint)
    of_run = (Checkpoint.run_id == context.assignment.run_id, Checkpoint.is_best)
    with transaction() as session:
        best = session.scalars(select(Checkpoint).where(*of_run)).one_or_none()
    if best is not None:
        context.summary["best"] = {
            "checkpoint_id": str(best.id),
            "stage": best.stage,
            "step": best.step,
            "heldout_reward": best.heldout_reward,
        }


def starting_weights(context: TrainingContext) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    configuration = context.configuration
    choice, seed = configuration.model, configuration.seed
    match choice.source:
        case "base":
            context.recorder.progress(phase="loading the base model", done=0, total=1, message=choice.base)
            return start_from_base(choice.base, configuration.adapter, seed=seed)
        case "checkpoint":
            with transaction() as session:
                checkpoint = session.get_one(Checkpoint, choice.checkpoint)
            return start_from_checkpoint(checkpoint, configuration.adapter, seed=seed)
    texts: list[str] = []
    if configuration.sft.uses("script"):
        context.recorder.progress(phase="reading the environment's text", done=0, total=READING_EPISODES)
        played: list[Rollout] = []
        context.env_pool.play(
            single_plans(context.assignment.envs, READING_EPISODES),
            ScriptedPolicy(configuration.sft.script),
            phase=Phase.WARM_UP,
            seed=seed,
            on_rollout=played.append,
        )
        messages = {rollout.group: rollout.messages for rollout in played}
        texts = [str(message["content"]) for group in sorted(messages) for message in messages[group]]
    for source, share in configuration.sft.shares.items():
        if share > 0 and source in {"rollouts", "file"}:
            for conversation in islice(conversations(context, source), READING_CONVERSATIONS):
                texts += [str(message["content"]) for message in conversation.messages]
    agent = context.assignment.manifest.proctor.agent
    texts += [render_unparsable(agent.unparsable_message, "The reply is empty.")] * (READING_EPISODES // 4)
    tokenizer = build_tokenizer(texts, vocabulary=choice.vocabulary, context=choice.context, pieces=choice.pieces)
    return build_model(tokenizer, choice, seed=seed), tokenizer


def stopped_on_request(run_id: uuid.UUID) -> TrainingOutcome:
    status = RunStatus.PAUSED if read_requests(run_id).pause else RunStatus.STOPPED
    reason = f"{status.capitalize()} on request. Resume the run to continue from its last saved state."
    return TrainingOutcome(status, reason)


def is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error).lower() for phrase in MEMORY_PHRASES)


def should_retry(run_id: uuid.UUID, folder: Path, error: Exception) -> bool:
    """Return whether a crashed run made progress since its last crash, and remember where it crashed.

    An error that repeats at the same place would repeat forever.
    """
    if isinstance(error, ModelUnusable | BrokenStep):
        return False
    marks = sorted(folder.rglob(COMPLETE), key=lambda mark: mark.stat().st_mtime_ns)
    trained = (Checkpoint.run_id == run_id, Checkpoint.stage != Stage.UNTRAINED)
    newest = select(Checkpoint).where(*trained).order_by(Checkpoint.created_at.desc(), Checkpoint.id.desc()).limit(1)
    with transaction() as session:
        run = session.get_one(Run, run_id)
        checkpoint = session.scalars(newest).first()
        place = [
            str(marks[-1].parent.relative_to(folder)) if marks else None,
            f"{checkpoint.stage} {checkpoint.step}" if checkpoint else None,
        ]
        if not any(place) or run.summary.get(CRASHED_AT) == place:
            return False
        run.summary = {**run.summary, CRASHED_AT: place}
    return True


def out_of_memory(run_id: uuid.UUID, error: Exception) -> TrainingOutcome:
    """Raise the alarm, and pause or stop the run: the same settings would need the same memory."""
    kind = ALARM_KINDS["out_of_memory"]
    message = " ".join(str(error).split())[:300] or type(error).__name__
    sentence = f"The training process ran out of memory: {message}."
    with transaction() as session:
        run = session.get_one(Run, run_id)
        action = action_of(current_settings(session, run).alarms, kind.name) or AlarmAction.PAUSE
        is_training = run.progress.get("phase") in (Stage.SFT, Stage.GRPO, Stage.ROUND, Stage.DPO)
        step = int(run.progress.get("done") or 0) if is_training else 0
    record_alarm(run_id, AlarmDraft(kind.name, step, sentence, action, kind.name, step, {}))
    status = RunStatus.STOPPED if action is AlarmAction.STOP else RunStatus.PAUSED
    return TrainingOutcome(status, f"{sentence} {kind.advice}")


def disk_full(folder: Path, error: Exception) -> TrainingOutcome:
    """Pause the run, so that it continues when there is space again."""
    discard_incomplete(folder)
    free_mb = shutil.disk_usage(folder).free / 2**20
    return TrainingOutcome(
        RunStatus.PAUSED,
        f"The disk is full or a quota is reached: {' '.join(str(error).split())[:300]}. {free_mb:,.0f} MB are free in"
        " the data folder. Earlier checkpoints and the last saved state are intact. Prune checkpoints or free disk"
        " space, and resume the run to continue from that state.",
    )


def finish(run_id: uuid.UUID, outcome: TrainingOutcome, summary: dict[str, object]) -> TrainingOutcome:
    """Set the run's final status, and start the branch of a rollback in the same transaction."""
    with transaction() as session:
        run = session.get_one(Run, run_id)
        mark_interventions_seen(session, run)
        if outcome.roll_back is not None:
            try:
                if depth_of(session, run) >= MOST_IN_A_ROW:
                    raise Conflict(f"{MOST_IN_A_ROW} branches in a row ended this way.")
                branch = roll_back(session, None, run, session.get_one(Alarm, outcome.roll_back))
                reason = f"{outcome.reason} Rolled back: {branch.name} continues."
                outcome = TrainingOutcome(outcome.status, reason)
            except Conflict as error:
                reason = f"{outcome.reason} It could not be rolled back: {error.message}"
                outcome = TrainingOutcome(RunStatus.PAUSED, reason)
        finish_run(session, run, outcome.status, summary, outcome.reason)
        return outcome


def follow(run_id: uuid.UUID) -> NoReturn:
    """Follow the leader's orders until it leaves, which ends this process. An error here ends all ranks."""
    follow_leader(training_folder(run_id))
    assignment = read_assignment(run_id)
    torch.set_num_threads(assignment.configuration.threads)
    try:
        select_device(assignment.configuration.hardware)
        ranks = join()
        while True:
            _follow_order(
                assignment, ranks, StageOrder(**ranks.receive())
            )  # its model is freed before the next is loaded
    except Exception as error:
        logger.exception("a rank failed")
        time.sleep(LEADER_SECONDS)
        if is_out_of_memory(error):  # the leader waits for this rank's gradient and cannot record it
            finish(run_id, out_of_memory(run_id, error), {})
        raise


def _follow_order(assignment: Assignment, ranks: Ranks, order: StageOrder) -> None:
    weights = load_folder(Path(order.weights))
    if order.stage == Stage.SFT:
        train_sft(sft_run(assignment.configuration, order, ranks, weights, read_examples(Path(order.examples))))
        return
    with open_env_pool(assignment.envs, assignment.configuration) as env_pool:
        run = grpo_run(assignment, order, ranks, weights, env_pool)
        train_grpo(run)
        env_pool.close_policy(run.policy)


def main() -> int:
    run_id = uuid.UUID(sys.argv[1])
    gc.freeze()  # modules are never garbage, and Trainer collects often enough that scanning them is slow
    configure_logging("training")
    logging.getLogger("accelerate").setLevel(logging.WARNING)
    disable_progress_bar()
    structlog.contextvars.bind_contextvars(run_id=str(run_id))

    def work() -> None:
        if distributed.is_torchelastic_launched() and os.environ["RANK"] != "0":  # noqa: TID251 - set by the launcher
            follow(run_id)
        with lead(training_folder(run_id)):
            outcome = train(run_id)
        logger.info("training ended", status=outcome.status, reason=outcome.reason)

    (record(work) if distributed.is_torchelastic_launched() else work)()  # reports errors to the launcher
    return 0


if __name__ == "__main__":
    sys.exit(main())
