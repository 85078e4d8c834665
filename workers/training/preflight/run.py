"""Run one preflight in a separate process: `python -m workers.training.preflight.run <preflight id>`.

Each finding is recorded at once.
"""

import logging
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import structlog
import torch
from transformers.utils.logging import disable_progress_bar

from backend.core.events import announce, topic_of
from backend.core.logs import configure_logging
from backend.core.session import transaction
from backend.domain.environments.manifest import Manifest
from backend.domain.text import plain_text
from backend.domain.training.configuration import Recipe, TrainingConfiguration
from backend.domain.training.preflight.findings import PreflightFinding, of_environment, ok, problem, warning
from backend.domain.training.preflight.measured import (
    SCRIPTED,
    UNTRAINED,
    conversation_finding,
    gradient_finding,
    success_finding,
    time_finding,
)
from backend.domain.training.preflight.static import estimate_run, in_mb, loads_of, memory_finding
from backend.domain.vocabulary import PreflightStatus, StopReason
from backend.settings import get_settings
from backend.training.tables import Preflight
from workers.models.chat import ChatFormat, ChatTokens, ChatUnusable
from workers.models.load import ModelUnusable, best_device
from workers.models.policy import LocalPolicy
from workers.storage.recorder import PROGRESS_SECONDS, RunRecorder
from workers.training.assignment import Assignment, training_envs_of
from workers.training.context import TrainingContext
from workers.training.curriculum import Planner, single_plans
from workers.training.env_pool import open_env_pool
from workers.training.example_sources import Teacher
from workers.training.hardware import resolve_hardware, select_device
from workers.training.heldout_evaluation import mean_format
from workers.training.preflight.measure import (
    InitialPolicy,
    OutOfGpuMemory,
    PlayedEpisodes,
    measure_pass,
    measure_speed,
    measures_of,
    play_episodes,
    successes,
)
from workers.training.run import starting_weights
from workers.training.sampler import INFRASTRUCTURE_ERRORS
from workers.training.shared_prompts import can_share_prompts
from workers.training.teacher import load_teacher

TASKS = 32
SCRIPTED_EPISODES = 64
AddFinding = Callable[[PreflightFinding], None]  # records a finding. It replaces one of the same name.

logger = structlog.get_logger(__name__)


class PreflightRecorder(RunRecorder):
    """Records the progress and findings of a preflight. Rollouts and metrics are not stored."""

    def __init__(self, preflight_id: uuid.UUID) -> None:
        self.preflight_id = preflight_id
        self._progress_at = 0.0

    def progress(self, *, phase: str, done: int, total: int, message: str = "", **_: object) -> None:
        now = time.monotonic()
        if now - self._progress_at >= PROGRESS_SECONDS or done >= total:
            self._progress_at = now
            message = plain_text(message)[:500]
            self.update(progress={"phase": phase, "done": done, "total": total, "message": message})

    def add(self, finding: PreflightFinding) -> None:
        """Add a finding, or replace the one of the same name."""
        with transaction() as session:
            row = session.get_one(Preflight, self.preflight_id, with_for_update=True)
            known = {each["name"]: each for each in row.findings}
            known[finding.name] = finding.model_dump(mode="json")
            row.findings = list(known.values())
            announce(session, topic_of("preflight", self.preflight_id))

    def update(self, **fields: object) -> None:
        with transaction() as session:
            row = session.get_one(Preflight, self.preflight_id)
            for name, value in fields.items():
                setattr(row, name, value)
            announce(session, topic_of("preflight", self.preflight_id))

    def log(self, message: str, level: str = "info") -> None:
        """The findings contain everything that a run would log."""

    def should_stop(self) -> bool:
        return False


def run_preflight(preflight_id: uuid.UUID) -> PreflightStatus:
    """Inspect the run, and record how the preflight ended."""
    with transaction() as session:
        row = session.get_one(Preflight, preflight_id)
        configuration = TrainingConfiguration.of_run(row.configuration)
        assignment = Assignment(  # neither the run nor the policy exists, and nothing is written to them
            run_id=preflight_id,
            policy_id=preflight_id,
            configuration=configuration,
            envs=training_envs_of(session, row.version_id, configuration),
            folder=get_settings().data / "training" / str(preflight_id),
            was_gate_closed=False,
        )
    recorder = PreflightRecorder(preflight_id)
    torch.set_num_threads(configuration.threads)
    status = PreflightStatus.COMPLETED
    reason: str | None = None
    try:
        recorder.progress(phase="preparing the environment", done=0, total=1)
        select_device(configuration.hardware)
        with open_env_pool(assignment.envs, assignment.configuration) as env_pool:
            inspect_training(TrainingContext(assignment, env_pool, recorder), recorder.add)
    except INFRASTRUCTURE_ERRORS:
        raise
    except Exception as error:
        logger.exception("the preflight failed")
        status, reason = PreflightStatus.FAILED, plain_text(f"{type(error).__name__}: {error}")[:2000]
    finally:
        shutil.rmtree(assignment.folder, ignore_errors=True)
    recorder.update(status=status, reason=reason, ended_at=datetime.now(UTC))
    return status


def inspect_training(context: TrainingContext, add: AddFinding) -> None:
    """Ask all questions. Ends early if a problem makes the remaining ones pointless."""
    initial = _load(context, add)
    if initial is None:
        return
    if context.configuration.recipe is Recipe.DISTILLATION and not _check_teacher(context, add, initial):
        return
    scripted = _play_script(context, add, initial)
    played = _play_policy(context, add, initial)
    if scripted is None:
        add(_conversation(initial, played, UNTRAINED))
    learned = scripted if scripted and scripted.examples else None
    conversations = learned or played
    if not conversations.examples:
        return
    context.recorder.progress(phase="measuring a step", done=0, total=1)
    configuration = context.configuration
    lengths = conversations.lengths
    longest = max(lengths.longest, played.lengths.longest)  # later, too, an episode may be as long as the first ones
    loads = loads_of(
        configuration,
        lengths,
        sampled=replace(lengths, longest=longest),
        trained=sum(parameter.numel() for parameter in initial.model.parameters() if parameter.requires_grad),
        shares_prompts=configuration.hardware.processes == 1 and can_share_prompts(initial.model),
        on_cpu=initial.model.device.type == "cpu",
        is_bf16=initial.hardware.is_bf16,
    )
    estimate = estimate_run(measures_of(initial, longest), loads)
    rows = max(load.rows for load in loads)
    try:
        cost = measure_pass(initial, conversations.examples, rows)
    except OutOfGpuMemory:
        advice = "Compute the gradient in more parts: raise grpo.micro_batches."
        add(problem("memory", f"A part of {rows} episodes does not fit into the GPU's memory.", advice))
        return
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if torch.cuda.is_available():  # the model is in the GPU's memory
        memory_bytes = torch.cuda.get_device_properties(0).total_memory
    memory = memory_finding(
        estimate, memory_bytes // 2**20, episodes=f"of {longest:,} tokens, the longest that were played"
    )
    if cost.peak_bytes:
        peak = f" One pass over {cost.rows} episodes used up to {in_mb(cost.peak_bytes)}."
        memory = memory.model_copy(update={"sentence": memory.sentence + peak})
    add(memory)
    speed = measure_speed(context, initial, cost, conversations, learned, played)
    add(time_finding(speed, configuration))


def _load(context: TrainingContext, add: AddFinding) -> InitialPolicy | None:
    """Load the model and check its chat template: a conversation must be the beginning of a longer one."""
    context.recorder.progress(phase="loading the model", done=0, total=1)
    try:
        hardware = resolve_hardware(context.configuration.hardware)
        model, tokenizer = starting_weights(context)
        if context.configuration.model.source == "scratch":
            model = model.to(best_device())
    except ModelUnusable as error:
        add(problem("model", f"The model cannot be used: {error}.", "Choose another one."))
        return None
    count = sum(parameter.numel() for parameter in model.parameters())
    add(ok("model", f"The model has {count / 1e6:,.2f} million weights.", parameters=count))
    try:
        chat = ChatTokens(tokenizer)
        chat.continuation([{"role": "user", "content": "b"}])
    except ChatUnusable as error:
        advice = "Choose a model whose chat template only appends and ends each reply, such as an instruct model."
        add(problem("chat_template", f"Its chat template cannot be used: {error}.", advice))
        return None
    add(chat_finding(chat.format, [env.manifest for env in context.assignment.envs]))
    return InitialPolicy(model, tokenizer, chat, hardware)


def chat_finding(chat: ChatFormat, manifests: Sequence[Manifest]) -> PreflightFinding:
    """Report the limits of the chat template, the workarounds, and settings that do not suit the environments."""
    agents = [manifest.proctor.agent for manifest in manifests]
    sentences = [f"The chat template ends replies with {chat.end}.", *chat.notes]
    if any(agent.action.format == "tool" for agent in agents):
        sentences.append(
            "Tools are described in the system prompt, and calls are written as text in <tool_call> tags, whatever the"
            " template has for tools."
        )
    evidence = {"stop_token": chat.end, "differences": chat.notes}
    if chat.opens_reasoning and any(agent.reasoning == "inline" for agent in agents):
        advice = (
            "The environment reads reasoning and answer as one text. Set agent.reasoning to think in its manifest, or"
            " choose a model that does not reason."
        )
        return warning("chat_template", " ".join(sentences), advice, **evidence)
    return ok("chat_template", " ".join(sentences), **evidence)


def _check_teacher(context: TrainingContext, add: AddFinding, initial: InitialPolicy) -> bool:
    """Load the teacher and have it score a token. Return whether it can."""
    choice = context.configuration.distillation
    context.recorder.progress(phase="checking the teacher", done=0, total=1)
    try:
        load_teacher(choice, initial.tokenizer)
    except (ModelUnusable, ChatUnusable) as error:
        sentence = f"{error}".rstrip(".")
        add(problem("teacher", f"The teacher cannot be used: {sentence}.", "Choose another teacher (distillation)."))
        return False
    add(ok("teacher", f"The teacher, {choice.described}, gives log-probabilities in the student's vocabulary."))
    return True


def _conversation(initial: InitialPolicy, played: PlayedEpisodes, kind: str) -> PreflightFinding:
    lengths = [len(example.tokens) for example in played.examples]
    if not lengths:
        return warning("conversation", "No episode could be played, so the length of conversations is unknown.")
    context = getattr(initial.model.config.get_text_config(), "max_position_embeddings", None) or 10**9
    full = sum(rollout.stop_reason is StopReason.CONTEXT_FULL for rollout in played.completed)
    return conversation_finding(lengths, context, of=kind, full=full)


def _play_script(context: TrainingContext, add: AddFinding, initial: InitialPolicy) -> PlayedEpisodes | None:
    """Play the scripted policy of the warm-up, or else another that all environments have. None if they share none."""
    scripts = context.configuration.sft.script, "teacher", "gold"
    shared = set.intersection(*(set(env.manifest.proctor.scripts) for env in context.assignment.envs))
    script = next((name for name in (*scripts, *sorted(shared)) if name in shared), None)
    if script is None:
        return None
    parts = [single_plans(context.assignment.envs, SCRIPTED_EPISODES)]
    played = play_episodes(context, parts, Teacher(script, initial.chat), initial.chat, "scripted policy")
    if not played.examples:
        advice = "Read the environment's log and run its checks."
        message = f"The scripted policy could not be played. {played.failure}".strip()
        add(problem("conversation", message, advice))
        return played
    add(_conversation(initial, played, SCRIPTED))
    for env in context.assignment.envs:
        if tasks := successes(env, context.configuration.curriculum.rule(env.manifest), played):
            share = sum(task.successes for task in tasks) / len(tasks)
            sentence = f"The scripted policy succeeds in {share:.0%} of {len(tasks)} episodes."
            finding = ok("script", sentence, share=share, script=script)
            add(of_environment(finding, env.name) if context.assignment.is_mixed else finding)
    return played


def _play_policy(context: TrainingContext, add: AddFinding, initial: InitialPolicy) -> PlayedEpisodes:
    """Play the first groups of GRPO with the policy before training, sampled as in training."""
    configuration, grpo = context.configuration, context.configuration.grpo
    sampling = grpo.model_dump(include={"temperature", "top_p", "top_k"})
    policy = LocalPolicy(initial.model, initial.tokenizer, **sampling, is_bf16=initial.hardware.is_bf16)
    size = grpo.tasks_per_step
    group_size = grpo.group_size if configuration.recipe.has_grpo else 2  # only the success counts for SFT
    grpo = grpo.model_copy(update={"tasks_per_step": TASKS, "group_size": group_size})
    plans = Planner(context.assignment.envs, configuration.model_copy(update={"grpo": grpo})).plans(1)
    parts = [plans[first : first + size] for first in range(0, len(plans), size)]
    played = play_episodes(context, parts, policy, policy.chat, "policy before training")
    if not played.completed:
        advice = "Read the worker's log. A failed episode does not count as a reward of zero; it is lost."
        add(problem("base_success", f"No episode could be played. {played.failure}".strip(), advice))
        return played
    for env in context.assignment.envs:
        rule = configuration.curriculum.rule(env.manifest)
        tasks = successes(env, rule, played)
        own = [rollout for rollout in played.completed if rollout.task.version_id == env.tag]
        parsed = sum(map(mean_format, own)) / len(own) if own else None
        findings = [success_finding(tasks, configuration, rule.expression, parsed=parsed)]
        if configuration.recipe.has_grpo:
            findings.append(gradient_finding(tasks, configuration))
        for each in findings:
            add(of_environment(each, env.name) if context.assignment.is_mixed else each)
    return played


def main() -> int:
    preflight_id = uuid.UUID(sys.argv[1])
    configure_logging("preflight")
    logging.getLogger("accelerate").setLevel(logging.WARNING)
    disable_progress_bar()
    structlog.contextvars.bind_contextvars(preflight_id=str(preflight_id))
    logger.info("preflight ended", status=run_preflight(preflight_id))
    return 0


if __name__ == "__main__":
    sys.exit(main())
