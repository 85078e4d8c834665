"""The questions of a preflight, one after another. Each finding is recorded at once."""

from collections.abc import Callable

from backend.domain.training.memory import estimate_memory
from backend.domain.training.preflight.findings import PreflightFinding, of_environment, ok, problem, warning
from backend.domain.training.preflight.measured import (
    SCRIPTED,
    UNTRAINED,
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
from workers.training.preflight.cost import OutOfGpuMemory, measure_pass, measure_speed, measures_of, memory_mb
from workers.training.preflight.play import InitialPolicy, PlayedEpisodes, play_policy, play_script, successes
from workers.training.run import starting_weights

AddFinding = Callable[[PreflightFinding], None]
"""Records a finding. It replaces one of the same name."""


def inspect_training(context: TrainingContext, add: AddFinding) -> None:
    """Ask all questions. Ends early if a problem makes the remaining ones pointless."""
    initial = _load(context, add)
    if initial is None:
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
    longest = max(len(example.tokens) for example in conversations.examples)
    trained = sum(parameter.numel() for parameter in initial.model.parameters() if parameter.requires_grad)
    load = load_of(configuration, tokens=longest, trained=trained)
    estimate = estimate_memory(measures_of(initial.model), load)
    try:
        cost = measure_pass(initial, conversations.examples, load.rows)
    except OutOfGpuMemory:
        advice = "Compute the gradient in more parts: raise grpo.micro_batches."
        add(problem("memory", f"A part of {load.rows} episodes does not fit into the GPU's memory.", advice))
        return
    memory = memory_finding(estimate, memory_mb(), episodes=f"of {longest:,} tokens, the longest that were played,")
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
        hardware = settle(context.configuration.hardware)
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
    end = str(tokenizer.convert_ids_to_tokens(chat.end))
    marks = "{% generation %}" in tokenizer.chat_template or "{%- generation" in tokenizer.chat_template
    marked = "it marks the assistant's text" if marks else "it does not mark the assistant's text; Proctor uses the"
    sentence = f"The chat template keeps earlier turns unchanged and ends replies with {end}; {marked}"
    sentence += "." if marks else " sampled tokens instead."
    add(ok("chat_template", sentence, generation_markers=marks, stop_token=end))
    return InitialPolicy(model, tokenizer, chat, hardware)


def _conversation(initial: InitialPolicy, played: PlayedEpisodes, kind: str) -> PreflightFinding:
    lengths = [len(example.tokens) for example in played.examples]
    if not lengths:
        return warning("conversation", "No episode could be played, so the length of conversations is unknown.")
    context = getattr(initial.model.config.get_text_config(), "max_position_embeddings", None) or 10**9
    return conversation_finding(lengths, context, of=kind)


def _play_script(context: TrainingContext, add: AddFinding, initial: InitialPolicy) -> PlayedEpisodes | None:
    """None if there is no scripted policy to play."""
    played = play_script(context, initial.chat)
    if played is None:
        return None
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
            finding = ok("script", sentence, share=share)
            add(of_environment(finding, env.name) if context.assignment.is_mixed else finding)
    return played


def _play_policy(context: TrainingContext, add: AddFinding, initial: InitialPolicy) -> PlayedEpisodes:
    configuration = context.configuration
    played = play_policy(context, initial)
    if not played.completed:
        advice = "Read the worker's log. A failed episode does not count as a reward of zero; it is lost."
        add(problem("base_success", f"No episode could be played. {played.failure}".strip(), advice))
        return played
    for env in context.assignment.envs:
        rule = configuration.curriculum.rule(env.manifest)
        tasks = successes(env, rule, played)
        findings = [success_finding(tasks, configuration, rule.expression)]
        if configuration.recipe.has_grpo:
            findings.append(gradient_finding(tasks, configuration))
        for each in findings:
            add(of_environment(each, env.name) if context.assignment.is_mixed else each)
    return played
