"""What a pre-flight asks on a worker, one question after the other; each answer is written down at once."""

from collections.abc import Iterator, Sequence
from typing import Any

from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.memory import estimate_memory
from backend.domain.training.preflight.findings import (
    FindingStatus,
    PreflightFinding,
    of_environment,
    ok,
    problem,
    warning,
)
from backend.domain.training.preflight.measured import (
    SCRIPTED,
    UNTRAINED,
    TaskSuccess,
    conversation_finding,
    gradient_finding,
    success_finding,
    time_finding,
)
from backend.domain.training.preflight.static import in_mb, load_of, memory_finding
from workers.models.chat import ChatTokens, ChatUnusable
from workers.models.load import ModelUnusable, best_device
from workers.training.context import TrainingContext
from workers.training.hardware import settle
from workers.training.planning.training_env import TrainingEnv
from workers.training.preflight.effort import (
    DoesNotFit,
    measure_effort,
    measures_of,
    memory_mb,
    trained_count,
)
from workers.training.preflight.notebook import Notebook
from workers.training.preflight.pace import TimeEstimate
from workers.training.preflight.play import Played, play_policy, play_script, successes
from workers.training.preflight.subject import Subject
from workers.training.warm_up import starting_weights


def look(bench: TrainingContext, notebook: Notebook) -> None:
    """Ends early where a problem makes the next questions pointless."""
    subject = _load(bench, notebook)
    if subject is None:
        return
    scripted = _ask_script(bench, notebook, subject)
    played = _ask_policy(bench, notebook, subject)
    if scripted is None:
        notebook.find(_lengths_of(subject, played, UNTRAINED))
    learned = scripted if scripted and scripted.lessons else None
    conversations = learned or played
    if conversations.lessons:
        _ask_effort(bench, notebook, subject, conversations, (learned, played))


def _load(bench: TrainingContext, notebook: Notebook) -> Subject | None:
    notebook.progress(phase="loading the model", done=0, total=1)
    try:
        hardware = settle(bench.configuration.hardware)
        model, tokenizer = starting_weights(bench)
        if bench.configuration.model.source == "scratch":
            model = model.to(best_device())
    except ModelUnusable as error:
        notebook.find(problem("model", f"The model cannot be used: {error}.", "Choose another one."))
        return None
    count = sum(parameter.numel() for parameter in model.parameters())
    notebook.find(ok("model", f"The model has {count / 1e6:,.2f} million weights.", parameters=count))
    try:
        chat = ChatTokens(tokenizer)
    except ChatUnusable as error:
        notebook.find(_unusable(error))
        return None
    template = _template(tokenizer, chat)
    notebook.find(template)
    return None if template.status is FindingStatus.PROBLEM else Subject(model, tokenizer, chat, hardware)


def _template(tokenizer: Any, chat: ChatTokens) -> PreflightFinding:
    """Does it leave earlier turns alone? Asked of two turns: a conversation must be a beginning of the longer one."""
    try:
        chat.continuation([{"role": "user", "content": "b"}])
    except ChatUnusable as error:
        return _unusable(error)
    end = tokenizer.convert_ids_to_tokens(chat.end)
    marks = "{% generation %}" in tokenizer.chat_template or "{%- generation" in tokenizer.chat_template
    told = "it marks what the assistant writes" if marks else "it does not mark what the assistant writes"
    sentence = f"The chat template leaves earlier turns as they are and ends replies with {end}; {told}"
    why = "" if marks else ", which Proctor does itself from the tokens that were sampled"
    return ok("chat_template", f"{sentence}{why}.", generation_markers=marks, stop_token=str(end))


def _unusable(error: ChatUnusable) -> PreflightFinding:
    advice = "Choose a model whose chat template only appends and ends each reply, such as an instruct model."
    return problem("chat_template", f"Its chat template cannot be used: {error}.", advice)


def _ask_script(bench: TrainingContext, notebook: Notebook, subject: Subject) -> Played | None:
    """None where there is no script to play."""
    played = play_script(bench, subject.chat)
    if played is None:
        return None
    if not played.lessons:
        advice = "Read the environment's log; its checks tell more."
        notebook.find(problem("conversation", f"The script could not be played. {played.failure}".strip(), advice))
        return played
    notebook.find(_lengths_of(subject, played, SCRIPTED))
    for env in bench.assignment.envs:
        tasks = successes(env, bench.configuration.curriculum.rule(env.manifest), played)
        if tasks:
            found = _script(tasks)
            notebook.find(of_environment(found, env.name) if bench.assignment.is_mixed else found)
    return played


def _lengths_of(subject: Subject, played: Played, of: str) -> PreflightFinding:
    lengths = [len(lesson.tokens) for lesson in played.lessons]
    if not lengths:
        return warning("conversation", "No episode could be played: how long conversations are is unknown.")
    context = getattr(subject.model.config.get_text_config(), "max_position_embeddings", None) or 10**9
    return conversation_finding(lengths, context, of=of)


def _script(tasks: Sequence[TaskSuccess]) -> PreflightFinding:
    share = sum(task.successes for task in tasks) / len(tasks)
    return ok("script", f"The script itself succeeds in {share:.0%} of {len(tasks)} episodes.", share=share)


def _ask_policy(bench: TrainingContext, notebook: Notebook, subject: Subject) -> Played:
    played = play_policy(bench, subject.policy(bench.configuration.grpo))
    if not played.completed:
        advice = "Read the worker's log: an episode that fails is no zero, it is lost."
        notebook.find(problem("base_success", f"No episode could be played. {played.failure}".strip(), advice))
        return played
    for env in bench.assignment.envs:
        found = list(_success(bench.configuration, env, played))
        notebook.find(*(of_environment(each, env.name) for each in found) if bench.assignment.is_mixed else found)
    return played


def _success(choices: TrainingConfiguration, env: TrainingEnv, played: Played) -> Iterator[PreflightFinding]:
    rule = choices.curriculum.rule(env.manifest)
    tasks = successes(env, rule, played)
    yield success_finding(tasks, choices, rule.expression)
    if choices.recipe.has_grpo:
        yield gradient_finding(tasks, choices)


def _ask_effort(
    bench: TrainingContext,
    notebook: Notebook,
    subject: Subject,
    conversations: Played,
    played: tuple[Played | None, Played],
) -> None:
    notebook.progress(phase="measuring a step", done=0, total=1)
    configuration = bench.configuration
    longest = max(len(lesson.tokens) for lesson in conversations.lessons)
    load = load_of(configuration, tokens=longest, trained=trained_count(subject.model))
    estimate = estimate_memory(measures_of(subject.model), load)
    try:
        pad = subject.chat.tokenizer.pad_token_id
        effort = measure_effort(subject.model, pad, conversations.lessons, load.rows, subject.hardware)
    except DoesNotFit:
        advice = "Compute the gradient in more parts: raise grpo.micro_batches."
        notebook.find(problem("memory", f"A part of {load.rows} episodes does not fit into the GPU's memory.", advice))
        return
    memory = memory_finding(estimate, memory_mb(), episodes=f"of {longest:,} tokens, the longest that were played,")
    peak = (
        f" One pass over {effort.rows} episodes took {in_mb(effort.peak_bytes)} at its peak."
        if effort.peak_bytes
        else ""
    )
    notebook.find(memory.model_copy(update={"sentence": memory.sentence + peak}))
    pace = TimeEstimate(bench, notebook, subject, conversations, effort)
    notebook.find(time_finding(pace.speed(*played), configuration))
