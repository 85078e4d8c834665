"""Pre-flight checks that need no worker: certificate, workers, batch, tasks, context, learning rates, memory."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter

from backend.domain.environments.manifest import Manifest
from backend.domain.runs.capabilities import OnlineWorker, not_offered
from backend.domain.training.adapter import AdapterKind
from backend.domain.training.configuration import Recipe, TrainingConfiguration, batch_in_words
from backend.domain.training.memory import (
    FLOAT_BYTES,
    ROUNDED_BYTES,
    SHAPES,
    WIDTHS_A_TOKEN,
    EpisodeLengths,
    Load,
    MemoryEstimate,
    ModelMeasures,
    estimate_memory,
    parameters_from_scratch,
    parameters_in_name,
)
from backend.domain.training.mix import portions
from backend.domain.training.preflight.findings import PreflightFinding, of_environment, ok, problem, warning
from backend.domain.vocabulary import CheckStatus

SMALL_GROUP = 4
BYTES_OF_BASE = {AdapterKind.FULL: 4.0, AdapterKind.LORA: 2.0, AdapterKind.QLORA: 0.55}
"""Usual bytes per weight of the base: fp32 if all weights are trained, else as published or quantized to 4 bits."""
USUAL_RATES = {
    ("sft", False): (1e-5, 5e-5),
    ("sft", True): (1e-4, 5e-4),
    ("rejection", False): (1e-5, 5e-5),
    ("rejection", True): (1e-4, 5e-4),
    ("grpo", False): (1e-6, 1e-5),
    ("grpo", True): (1e-5, 1e-4),
}
"""Usual learning rates of pretrained models, lowest and highest, by stage and whether an adapter is trained (10 times
higher). Around the defaults of TRL and its guide *LoRA Without Regret* (Schulman and Thinking Machines Lab 2025): 2e-5
and 2e-4 for SFT, 1e-6 and 1e-5 for GRPO."""


@dataclass(frozen=True, slots=True)
class Site:
    """One environment of the planned run."""

    manifest: Manifest
    certificate: CheckStatus | None
    """None if its checks were never run."""
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """A planned training run, as far as it is known without a worker."""

    configuration: TrainingConfiguration
    sites: Sequence[Site]
    """The run's own environment first, then those of its mix."""
    offers: Sequence[OnlineWorker]
    checkpoint_bytes: int | None = None
    """Size of the weights of the checkpoint that the run starts from."""
    context: int | None = None
    """Context length of the checkpoint or base, if it is known before the model is loaded."""
    is_pretrained: bool = False
    """The run starts from a model that was pretrained elsewhere."""
    missing: Sequence[str] = ()
    """Messages about environments of the mix that do not exist."""
    store: str | None = None
    """Id of this installation's artifact store, if it is known."""

    @property
    def training(self) -> list[OnlineWorker]:
        """Workers that train with the selected engine, whatever artifact store they use."""
        return [offer for offer in self.offers if offer.takes(self.configuration.engine)]

    @property
    def able(self) -> list[OnlineWorker]:
        return [offer for offer in self.training if offer.can.reads(self.store)]


def checks_at_once(plan: Plan) -> list[PreflightFinding]:
    """All findings that need no worker. In a mix, each environment is checked."""
    configuration, model = plan.configuration, plan.configuration.model
    context = model.context if model.source == "scratch" else plan.context
    weights, batch = [site.weight for site in plan.sites], batch_in_words(configuration)
    scripted = configuration.sft.scripted_episodes if configuration.recipe.has_sft else 0
    sampled = configuration.grpo.steps * configuration.grpo.tasks_per_step if configuration.recipe.has_grpo else 0
    if configuration.recipe is Recipe.REJECTION_SAMPLING:
        sampled = configuration.rejection.rounds * configuration.rejection.tasks
    tasks = portions(weights, scripted + sampled)  # if none is repeated
    heldout = portions(weights, configuration.heldout.tasks)
    findings = [problem(f"mix_{number}" if number else "mix", sentence) for number, sentence in enumerate(plan.missing)]
    for site in plan.sites:
        findings += _of_site(plan, site, _environment_findings(configuration, site))
    findings += _workers(plan)
    sentence = f"{batch[0].upper()}{batch[1:]}."
    if configuration.recipe.has_grpo and configuration.grpo.group_size < SMALL_GROUP:
        advice = f"In groups of fewer than {SMALL_GROUP}, all rewards are often equal, so there is nothing to learn."
        findings.append(warning("batch", sentence, advice))
    else:
        findings.append(ok("batch", sentence))
    for site, needed, evaluated in zip(plan.sites, tasks, heldout, strict=True):
        findings += _of_site(plan, site, _task_findings(configuration, site, needed, evaluated, context))
    findings += _learning_rates(configuration) if plan.is_pretrained else ()
    memory = memory_at_once(plan)
    return [*findings, memory] if memory else findings


def _of_site(plan: Plan, site: Site, findings: Iterable[PreflightFinding]) -> Iterator[PreflightFinding]:
    for finding in findings:
        yield of_environment(finding, site.manifest.name) if len(plan.sites) > 1 else finding


def _environment_findings(configuration: TrainingConfiguration, site: Site) -> Iterator[PreflightFinding]:
    """Settings that cannot work with this environment, so that the run is refused, and its certificate."""
    offered = site.manifest.proctor
    problems = configuration.problems(
        scripts=list(offered.scripts), levels=offered.tasks.levels, has_seats=offered.seats is not None
    )
    for number, text in enumerate(problems):
        yield problem(f"environment_{number}" if number else "environment", text)
    match site.certificate:
        case CheckStatus.PASSED:
            yield ok("certificate", "The environment passed its checks.")
        case CheckStatus.WARNED:
            yield warning("certificate", "The environment passed its checks with warnings.", "Read its certificate.")
        case CheckStatus.FAILED:
            advice = "Repair the environment, or give a reason to train on it."
            yield problem("certificate", "The environment failed its checks.", advice)
        case _:
            advice = "Run its checks, or give a reason to train without them. They then run alongside the training."
            yield warning("certificate", "The checks of the environment were never run.", advice)


def _task_findings(
    configuration: TrainingConfiguration, site: Site, needed: int, evaluated: int, context: int | None
) -> Iterator[PreflightFinding]:
    """Compare numbers of training and held-out tasks, and the context length, with the manifest."""
    tasks, episode = site.manifest.proctor.tasks, site.manifest.proctor.episode
    numbers = {"asked": needed, "there": tasks.train}
    if needed <= tasks.train:
        yield ok("tasks", f"{needed:,} of the environment's {tasks.train:,} training tasks.", **numbers)
    else:
        sentence = (
            f"The run needs {needed:,} training tasks and the environment has {tasks.train:,}: each is repeated about"
            f" {needed / tasks.train:.1f} times."
        )
        advice = "Repeated tasks may be memorized. Watch the gap between training reward and held-out reward."
        yield warning("tasks", sentence, advice, **numbers)

    error = 1.96 * (0.25 / max(1, evaluated)) ** 0.5
    sentence = f"Held-out evaluations use {evaluated:,} tasks: the success rate is accurate to ±{error:.0%} or better."
    if evaluated > tasks.heldout:
        advice = f"Set heldout.tasks to {configuration.heldout.tasks * tasks.heldout // evaluated:,} or less."
        sentence = f"The run needs {evaluated:,} held-out tasks and the environment has {tasks.heldout:,}."
        yield problem("heldout", sentence, advice)
    elif evaluated < 50:
        yield warning("heldout", sentence, "More tasks distinguish the best checkpoint from a lucky one.")
    else:
        yield ok("heldout", sentence)

    if context is None:
        return
    most = episode.max_turns * episode.max_tokens_per_turn
    sentence = (
        f"The context length is {context:,} tokens; replies alone may take {episode.max_turns} turns ×"
        f" {episode.max_tokens_per_turn:,} tokens = {most:,}."
    )
    if episode.max_tokens_per_turn >= context:
        advice = "A single reply may fill the context, which ends the episode. A worker measures the actual lengths."
        yield warning("context", sentence, advice, context=context, most=most)
    else:
        yield ok("context", sentence, context=context, most=most)


def _workers(plan: Plan) -> Iterator[PreflightFinding]:
    configuration = plan.configuration
    yield from impossible(configuration, plan.offers)
    count = configuration.hardware.processes
    if count > 1 and plan.able and not _most_gpus(configuration, plan.able):
        advice = "Several processes are for several GPUs. On a CPU they share its cores; use them only for testing."
        yield warning("processes", f"{count} processes will train on a CPU.", advice)
    names = ", ".join(offer.name for offer in (plan.able or plan.training)[:3])
    if plan.able:
        number = "1 worker" if len(plan.able) == 1 else f"{len(plan.able)} workers"
        yield ok("worker", f"{number} can run it: {names}.")
    elif plan.training:
        yield problem(
            "worker",
            f"No online worker can read the artifacts of this installation: {names} store them elsewhere. The run waits"
            " for one.",
            "Set the same PROCTOR_ARTIFACTS_URL, or the same folder, on all machines, and restart their workers.",
        )
    else:
        advice = "Start one: `proctor up` starts a worker for the queue gpu; with docker compose it is worker-gpu."
        yield warning("worker", "No worker for training is online. The run waits for one.", advice)


def impossible(configuration: TrainingConfiguration, offers: Sequence[OnlineWorker]) -> list[PreflightFinding]:
    """Settings that no worker supports."""
    findings: list[PreflightFinding] = []
    nodes, count = configuration.hardware.nodes, configuration.hardware.processes_per_node
    most = _most_gpus(configuration, offers)
    if most and count > most:
        gpus = "1 GPU" if most == 1 else f"{most} GPUs"
        sentence = f"{count} processes need a GPU each; the largest worker has {gpus}."
        advice = f"Set hardware.processes to {most * nodes} or less."
        findings.append(problem("processes", sentence, advice, field="hardware.processes"))
    led = max((offer.can.nodes for offer in offers if offer.takes(configuration.engine)), default=nodes)
    if nodes > led:
        sentence = f"The run needs {nodes} nodes; the largest group of an online worker has {led}."
        advice = "Lower hardware.nodes, or start a group of nodes as docs/deploy.md describes (PROCTOR_NODES)."
        findings.append(problem("nodes", sentence, advice, field="hardware.nodes"))
    for (field, value), reason in not_offered(offers).items():
        if attrgetter(field)(configuration) == value:
            advice = "Choose another value, or start such a worker."
            findings.append(problem("choice", f"{field} {value} {reason}.", advice, field=field))
    return findings


def _most_gpus(configuration: TrainingConfiguration, offers: Sequence[OnlineWorker]) -> int:
    """The largest number of GPUs of a worker that can train; 0 if the CPU trains."""
    if configuration.hardware.device == "cpu":
        return 0
    return max((offer.can.gpu_count for offer in offers if offer.takes(configuration.engine)), default=0)


def _learning_rates(configuration: TrainingConfiguration) -> Iterator[PreflightFinding]:
    """The learning rates of a pretrained model against usual ones. Rates for models from scratch would ruin it."""
    is_adapter, recipe = configuration.adapter.kind is not AdapterKind.FULL, configuration.recipe
    what = "an adapter of a pretrained model" if is_adapter else "all weights of a pretrained model"
    rates = [("sft", configuration.sft.learning_rate)] if recipe.has_sft else []
    rates += [("grpo", configuration.grpo.learning_rate)] if recipe.has_grpo else []
    rates += [("rejection", configuration.rejection.learning_rate)] if recipe is Recipe.REJECTION_SAMPLING else []
    for stage, rate in rates:
        (low, high), name = USUAL_RATES[stage, is_adapter], f"{stage}.learning_rate"
        sentence = f"{name} is {_scientific(rate)}; {_scientific(low)} to {_scientific(high)} is usual for {what}."
        if rate > 3.0 * high:
            advice = f"Set {name} to about {_scientific(low)}. A rate this high unlearns what the model knows."
            yield warning(f"{stage}_rate", sentence, advice, rate=rate, usual=high)
        else:
            yield ok(f"{stage}_rate", sentence, rate=rate, usual=high)


def _scientific(rate: float) -> str:
    """Write 0.0005 as `5e-4`."""
    digits, _, exponent = f"{rate:.2e}".partition("e")
    return f"{float(digits):g}e{int(exponent)}"


def memory_at_once(plan: Plan) -> PreflightFinding | None:
    """The memory estimate, or None if the size of the model is unknown before it is loaded."""
    configuration, model = plan.configuration, plan.configuration.model
    machines = [offer.can for offer in plan.able]
    memory_mb = max(
        (max((gpu.memory_mb for gpu in can.gpus), default=0) or can.memory_mb for can in machines), default=0
    )
    if model.source == "scratch":
        shape = SHAPES[model.size]
        count = parameters_from_scratch(model.architecture, shape, vocabulary=model.vocabulary, context=model.context)
        token_bytes = WIDTHS_A_TOKEN[model.architecture] * shape.width * shape.layers * FLOAT_BYTES
        measures = ModelMeasures(count, shape.layers, shape.width, shape.width, model.vocabulary, token_bytes)
        on_cpu = bool(machines) and not _most_gpus(configuration, plan.able)
        lengths = EpisodeLengths(model.context)
        estimate = estimate_run(measures, loads_of(configuration, lengths, trained=count, on_cpu=on_cpu))
        episodes = f"that fill the context of {model.context:,} tokens"
        return memory_finding(estimate, memory_mb, episodes=episodes)
    if model.source == "checkpoint":
        known = plan.checkpoint_bytes // FLOAT_BYTES if plan.checkpoint_bytes else None
    else:
        known = parameters_in_name(model.base)
    if not known:
        return None
    trained = known if configuration.adapter.kind is AdapterKind.FULL else 0
    # a lower bound: without activations and cache
    measures = ModelMeasures(known, 0, 0, 0, 0, 0.0, weight_bytes=BYTES_OF_BASE[configuration.adapter.kind])
    estimate = estimate_run(measures, loads_of(configuration, EpisodeLengths(0), trained=trained))
    return memory_finding(estimate, memory_mb, is_least=True)


def estimate_run(model: ModelMeasures, loads: Iterable[Load]) -> MemoryEstimate:
    """The estimate of the stage that needs the most memory."""
    return max((estimate_memory(model, load) for load in loads), key=attrgetter("total"))


def loads_of(
    configuration: TrainingConfiguration,
    lengths: EpisodeLengths,
    *,
    trained: int,
    sampled: EpisodeLengths | None = None,
    shares_prompts: bool = False,
    on_cpu: bool = False,
    is_bf16: bool = False,
) -> list[Load]:
    """The loads of a run's stages. `lengths`: of the episodes to imitate. `sampled`: of those to play. Default: equal.

    `trained`: number of trained weights. `shares_prompts`: GRPO computes the prompt of a group once.
    """
    grpo, recipe, hardware = configuration.grpo, configuration.recipe, configuration.hardware
    sampled = sampled or lengths
    played = grpo.episodes_per_step if recipe.has_grpo else configuration.heldout.tasks
    copies_weights = on_cpu and (is_bf16 or configuration.adapter.kind is not AdapterKind.FULL)
    shared = Load(
        trained=trained,
        # with an adapter, the base is the reference
        has_reference=_has_second_model(configuration),
        rows=1,
        lengths=lengths,
        sampled_rows=min(configuration.concurrency, played),
        is_recomputed=hardware.gradient_checkpointing,
        samples_ahead=configuration.samples_ahead,
        shards=hardware.processes if hardware.sharding != "none" else 1,
        on_cpu=on_cpu,
        copied_bytes=(ROUNDED_BYTES if is_bf16 else FLOAT_BYTES) if copies_weights else 0.0,
    )
    loads = []
    if recipe.has_grpo:
        rows = grpo.episodes_per_step // (grpo.micro_batches * hardware.processes)
        sharing = min(grpo.group_size, rows) if shares_prompts else 1
        loads.append(replace(shared, rows=max(rows, 1), lengths=sampled, sharing=sharing))
    if configuration.imitates:
        loads.append(replace(shared, rows=max(configuration.imitation.batch // hardware.processes, 1)))
    if recipe is Recipe.DPO:
        rows = 2 * configuration.preferences.batch // configuration.preferences.micro_batches
        loads.append(replace(shared, rows=max(rows, 1)))
    return loads or [shared]


def _has_second_model(configuration: TrainingConfiguration) -> bool:
    """Whether a reference or a teacher is in memory. The teacher is estimated to be as large as the student."""
    recipe, is_full = configuration.recipe, configuration.adapter.kind is AdapterKind.FULL
    if recipe is Recipe.DISTILLATION:
        return configuration.distillation.teacher != "endpoint"
    return is_full and (recipe is Recipe.DPO or (recipe.has_grpo and configuration.grpo.beta > 0))


def memory_finding(
    estimate: MemoryEstimate, memory_mb: int, *, episodes: str = "", is_least: bool = False
) -> PreflightFinding:
    """Compare the estimate with the memory of a worker; 0 if it is unknown. `episodes`: those it is valid for."""
    parts = ", ".join(f"{name} {in_mb(size)}" for name, size in asdict(estimate).items() if size)
    run = f"With episodes {episodes}, the run" if episodes else "The run"
    sentence = f"{run} needs {'at least' if is_least else 'about'} {in_mb(estimate.total)}: {parts}."
    evidence = {"bytes": estimate.total, **asdict(estimate)}
    if not memory_mb:
        return ok("memory", sentence, **evidence)
    sentence = f"{sentence} The largest worker has {in_mb(memory_mb * 2**20)}."
    share = estimate.total / 2**20 / memory_mb
    if share <= 0.9:  # above 1 it is a problem
        return ok("memory", sentence, **evidence)
    advice = (
        "Use more micro-batches (grpo.micro_batches), gradient checkpointing (hardware.gradient_checkpointing), fewer"
        " concurrent episodes (concurrency), a smaller model or an adapter."
    )
    return (problem if share > 1 else warning)("memory", sentence, advice, **evidence)


def in_mb(size: float) -> str:
    """Bytes as text: `512 MB`, `1.5 GB`."""
    megabytes = size / 2**20
    if megabytes >= 1024:
        return f"{megabytes / 1024:,.1f} GB"
    return f"{megabytes:,.0f} MB" if megabytes >= 10 else f"{megabytes:,.1f} MB"
