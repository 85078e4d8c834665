"""Checks that need no worker: arithmetic, certificate, workers, limits, memory, number of tasks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from backend.domain.environments.manifest import Manifest
from backend.domain.runs.capabilities import Offer, not_offered
from backend.domain.training.adapter import AdapterKind
from backend.domain.training.batch_arithmetic import batch_in_words
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.memory import Load, MemoryEstimate, ModelMeasures, estimate_memory, least_memory
from backend.domain.training.mix import portions
from backend.domain.training.model_shapes import BYTES_OF_FLOAT, SHAPES, parameters_from_scratch, parameters_in_name
from backend.domain.training.preflight.findings import PreflightFinding, ok, problem, told_of, warning
from backend.domain.training.preflight.rates import rate_findings
from backend.domain.vocabulary import CheckStatus

SMALL_GROUP = 4
FEW_HELDOUT = 50
BYTES_OF_BASE = {AdapterKind.FULL: 4.0, AdapterKind.LORA: 2.0, AdapterKind.QLORA: 0.55}
"""Of each weight as it is usually kept: in fp32 where all are trained, else as published or rounded to 4 bits."""
CROWDED = 0.9
"""Share of a worker's memory that the estimate may take before it is a warning; above all of it, a problem."""


@dataclass(frozen=True, slots=True)
class Site:
    """One of the environments that are about to be played."""

    manifest: Manifest
    certificate: CheckStatus | None
    """None: nobody ran the checks."""
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is about to be started, and what is known without a worker."""

    configuration: TrainingConfiguration
    sites: Sequence[Site]
    """The run's own environment first, then those of its mix."""
    offers: Sequence[Offer]
    """Workers that answer."""
    checkpoint_bytes: int | None = None
    """Size of the checkpoint's weights, where the run starts from one."""
    context: int | None = None
    """What the checkpoint or the base reads, where that is known before it is loaded."""
    is_pretrained: bool = False
    """It starts from weights that were trained elsewhere on much text."""
    missing: Sequence[str] = ()
    """What is said of environments of the mix that are not there."""
    store: str | None = None
    """Id of this installation's artifact store; None where it is not known."""

    @property
    def reads(self) -> int | None:
        """The context of the model that it starts from."""
        model = self.configuration.model
        return model.context if model.source == "scratch" else self.context

    @property
    def able(self) -> list[Offer]:
        """Workers that can take the run up."""
        return [offer for offer in self.training if offer.can.reads(self.store)]

    @property
    def training(self) -> list[Offer]:
        """Workers that train with the chosen engine, wherever they store checkpoints."""
        return [offer for offer in self.offers if offer.takes(self.configuration.engine)]


def checks_at_once(plan: Plan) -> list[PreflightFinding]:
    """In the order in which a person would ask. Of a mix each environment is asked."""
    found = [
        *(problem(_numbered("mix", number), sentence) for number, sentence in enumerate(plan.missing)),
        *_of_each(plan, _contradictions),
        *_of_each(plan, _certificate),
        *_workers(plan),
        _batch(plan.configuration),
        *_of_each(plan, _tasks),
        *_of_each(plan, _heldout),
        *_of_each(plan, partial(_context, plan.reads)),
        *(rate_findings(plan.configuration) if plan.is_pretrained else ()),
    ]
    memory = memory_at_once(plan)
    return found + ([memory] if memory else [])


Portion = Callable[[int], int]
"""How many of so many tasks are the environment's own."""
Question = Callable[[TrainingConfiguration, Site, Portion], Iterator[PreflightFinding]]


def _of_each(plan: Plan, ask: Question) -> Iterator[PreflightFinding]:
    """Of a single environment as it is; in a mix each finding says of which, so that names stay apart."""
    weights = [site.weight for site in plan.sites]
    for place, site in enumerate(plan.sites):
        for finding in ask(plan.configuration, site, partial(_portion, weights, place)):
            yield told_of(finding, site.manifest.name) if len(plan.sites) > 1 else finding


def _portion(weights: Sequence[float], place: int, count: int) -> int:
    return portions(weights, count)[place]


def _numbered(name: str, number: int) -> str:
    return f"{name}_{number}" if number else name


def _contradictions(configuration: TrainingConfiguration, site: Site, _: Portion) -> Iterator[PreflightFinding]:
    """What cannot work with this environment; a run with it is refused."""
    offered = site.manifest.proctor
    found = configuration.problems(scripts=list(offered.scripts), levels=offered.tasks.levels)
    for number, sentence in enumerate(found):
        yield problem(_numbered("environment", number), sentence)


def _certificate(_: TrainingConfiguration, site: Site, __: Portion) -> Iterator[PreflightFinding]:
    match site.certificate:
        case CheckStatus.PASSED:
            yield ok("certificate", "The environment's checks passed: its reward was shown to be sound.")
        case CheckStatus.WARNED:
            yield warning("certificate", "The environment's checks passed with warnings.", "Read its certificate.")
        case CheckStatus.FAILED:
            yield problem("certificate", "The environment failed its checks.", "Repair it, or say why to train on it.")
        case _:
            advice = "Run its checks, or say why to train without; they are then run beside the training."
            yield warning("certificate", "Nobody ran the environment's checks.", advice)


def _workers(plan: Plan) -> Iterator[PreflightFinding]:
    yield from impossible(plan.configuration, plan.offers)
    yield from _processes(plan.configuration, plan.able)
    if plan.able:
        names = ", ".join(offer.name for offer in plan.able[:3])
        yield ok("worker", f"{len(plan.able)} worker{'' if len(plan.able) == 1 else 's'} can take it up: {names}.")
    elif plan.training:
        names = ", ".join(offer.name for offer in plan.training[:3])
        yield problem(
            "worker",
            f"No worker that can read this installation's artifacts is online: {names} store them elsewhere. The run"
            " waits until one is.",
            "Give all machines the same PROCTOR_ARTIFACTS_URL, or the same folder, and restart their workers.",
        )
    else:
        advice = "Start one: `proctor up` starts a worker for the queue gpu; with docker compose it is worker-gpu."
        yield warning("worker", "No worker that trains answers now: the run waits until one does.", advice)


def impossible(configuration: TrainingConfiguration, offers: Sequence[Offer]) -> list[PreflightFinding]:
    """Choices that no worker can carry out."""
    chosen = configuration.resolved()
    return [*_too_many_processes(configuration, offers)] + [
        problem("choice", f"{field} {value} {reason}.", "Choose another one, or start such a worker.", field=field)
        for (field, value), reason in not_offered(offers).items()
        if _at(chosen, field) == value
    ]


def _too_many_processes(configuration: TrainingConfiguration, offers: Sequence[Offer]) -> Iterator[PreflightFinding]:
    """Each wants a GPU of its own, where there are GPUs."""
    count, most = configuration.hardware.processes, _most_gpus(configuration, offers)
    if most and count > most:
        has = f"{most} GPU{'' if most == 1 else 's'}"
        sentence = f"{count} processes want a GPU each; the largest worker has {has}."
        yield problem("processes", sentence, f"Set hardware.processes to {most} or less.", field="hardware.processes")


def _processes(configuration: TrainingConfiguration, offers: Sequence[Offer]) -> Iterator[PreflightFinding]:
    """Several on a CPU share its cores."""
    count = configuration.hardware.processes
    if count > 1 and offers and not _most_gpus(configuration, offers):
        advice = "Several processes are for several GPUs; on a CPU they share its cores and only serve to try this out."
        yield warning("processes", f"{count} processes will train on a CPU.", advice)


def _most_gpus(configuration: TrainingConfiguration, offers: Sequence[Offer]) -> int:
    """Of one worker that can take the run up; 0 where the CPU trains."""
    if configuration.hardware.device == "cpu":
        return 0
    return max((offer.can.gpu_count for offer in offers if offer.takes(configuration.engine)), default=0)


def _at(chosen: object, field: str) -> object:
    for name in field.split("."):
        chosen = chosen.get(name) if isinstance(chosen, dict) else None
    return chosen


def _batch(configuration: TrainingConfiguration) -> PreflightFinding:
    words = batch_in_words(configuration)
    sentence = words[0].upper() + words[1:] + "."
    if configuration.recipe.has_grpo and configuration.grpo.group_size < SMALL_GROUP:
        advice = f"In groups under {SMALL_GROUP} all episodes often earn the same and teach nothing."
        return warning("batch", sentence, advice)
    return ok("batch", sentence)


def _tasks(configuration: TrainingConfiguration, site: Site, portion: Portion) -> Iterator[PreflightFinding]:
    there, asked = site.manifest.proctor.tasks.train, portion(tasks_asked(configuration))
    if asked > there:
        advice = "Repeated tasks may be learned by heart: watch the gap between training and held-out reward."
        sentence = f"{asked:,} training tasks are asked for and the environment has {there:,}: each comes about"
        yield warning("tasks", f"{sentence} {asked / there:.1f} times.", advice, asked=asked, there=there)
    else:
        yield ok("tasks", f"{asked:,} of the environment's {there:,} training tasks.", asked=asked, there=there)


def tasks_asked(configuration: TrainingConfiguration) -> int:
    """Training tasks of all stages, each counted once where there are enough."""
    asked = configuration.sft.scripted_episodes if configuration.recipe.has_sft else 0
    grpo = configuration.grpo
    return asked + (grpo.steps * grpo.tasks_per_step if configuration.recipe.has_grpo else 0)


def _heldout(configuration: TrainingConfiguration, site: Site, portion: Portion) -> Iterator[PreflightFinding]:
    asked, there = portion(configuration.heldout.tasks), site.manifest.proctor.tasks.heldout
    if asked > there:
        advice = f"Set heldout.tasks to {configuration.heldout.tasks * there // asked:,} or less."
        yield problem("heldout", f"{asked:,} held-out tasks are asked for; the environment has {there:,}.", advice)
        return
    blur = 1.96 * (0.25 / asked) ** 0.5
    sentence = (
        f"Each examination plays {asked:,} held-out tasks: a share of successes is known to ±{blur:.0%} or better."
    )
    if asked < FEW_HELDOUT:
        yield warning("heldout", sentence, "More tasks tell the best checkpoint apart from a lucky one.")
    else:
        yield ok("heldout", sentence)


def _context(context: int | None, _: TrainingConfiguration, site: Site, __: Portion) -> Iterator[PreflightFinding]:
    """Against the limits that the manifest declares. What episodes really need is measured by a worker."""
    if context is None:
        return
    episode = site.manifest.proctor.episode
    most = episode.max_turns * episode.max_tokens_per_turn
    sentence = (
        f"The model reads {context:,} tokens; replies alone may have {episode.max_turns} turns ×"
        f" {episode.max_tokens_per_turn:,} tokens = {most:,}."
    )
    if episode.max_tokens_per_turn >= context:
        advice = (
            "A single reply may fill the context, and the episode then ends. A look by a worker tells what is needed."
        )
        yield warning("context", sentence, advice, context=context, most=most)
    else:
        yield ok("context", sentence, context=context, most=most)


def memory_at_once(plan: Plan) -> PreflightFinding | None:
    """None where the model's size is not known before it is loaded."""
    estimate = _estimate(plan)
    if estimate is None:
        return None
    memory_mb = max((offer.can.model_memory_mb for offer in plan.able), default=0)
    if plan.configuration.model.source != "scratch":
        return memory_finding(estimate, memory_mb, is_least=True)
    episodes = f"that fill the context of {plan.configuration.model.context:,} tokens"
    return memory_finding(estimate, memory_mb, episodes=episodes)


def _estimate(plan: Plan) -> MemoryEstimate | None:
    configuration = plan.configuration
    model = configuration.model
    match model.source:
        case "scratch":
            return estimate_memory(scratch_measures(configuration), load_of(configuration, tokens=model.context))
        case "checkpoint":
            count = plan.checkpoint_bytes // BYTES_OF_FLOAT if plan.checkpoint_bytes else None
        case _:
            count = parameters_in_name(model.base)
    if not count:
        return None
    weight_bytes = BYTES_OF_BASE[configuration.adapter.kind]
    trained = count if configuration.adapter.kind is AdapterKind.FULL else 0
    return least_memory(count, trained=trained, has_reference=needs_reference(configuration), weight_bytes=weight_bytes)


def scratch_measures(configuration: TrainingConfiguration) -> ModelMeasures:
    model, shape = configuration.model, SHAPES[configuration.model.size]
    count = parameters_from_scratch(model.architecture, shape, vocabulary=model.vocabulary, context=model.context)
    return ModelMeasures(count, shape.layers, shape.width, shape.heads, shape.width, model.vocabulary)


def load_of(configuration: TrainingConfiguration, *, tokens: int, trained: int | None = None) -> Load:
    """`trained`: weights that are trained, where they are not all of a from-scratch model's."""
    grpo, has_grpo = configuration.grpo, configuration.recipe.has_grpo
    processes = configuration.hardware.processes
    rows = grpo.episodes_per_step // (grpo.micro_batches * processes) if has_grpo else configuration.sft.batch
    sampled = min(configuration.concurrency, grpo.episodes_per_step if has_grpo else configuration.heldout.tasks)
    if trained is None:
        trained = scratch_measures(configuration).parameters
    is_recomputed = configuration.hardware.gradient_checkpointing
    return Load(trained, needs_reference(configuration), rows, tokens, sampled, is_recomputed)


def needs_reference(configuration: TrainingConfiguration) -> bool:
    """A second copy of the weights; an adapter is switched off instead."""
    is_whole = configuration.adapter.kind is AdapterKind.FULL
    return configuration.recipe.has_grpo and configuration.grpo.beta > 0 and is_whole


def memory_finding(
    estimate: MemoryEstimate, memory_mb: int, *, episodes: str = "", is_least: bool = False
) -> PreflightFinding:
    """The estimate held against a worker's memory, where one is known. `episodes`: those that it holds for."""
    parts = ", ".join(f"{name} {in_mb(size)}" for name, size in estimate.parts().items() if size)
    about = "at least" if is_least else "about"
    it = f"With episodes {episodes} it" if episodes else "It"
    sentence = f"{it} needs {about} {in_mb(estimate.total)}: {parts}."
    evidence = {"bytes": estimate.total, **estimate.parts()}
    if not memory_mb:
        return ok("memory", sentence, **evidence)
    share = estimate.total / 2**20 / memory_mb
    against = f"{sentence} The largest worker has {in_mb(memory_mb * 2**20)}."
    advice = (
        "Compute the gradient in more parts (grpo.micro_batches), keep less (hardware.gradient_checkpointing), play"
        " fewer at a time (concurrency), or train a smaller model or an adapter."
    )
    if share > 1:
        return problem("memory", against, advice, **evidence)
    if share > CROWDED:
        return warning("memory", against, advice, **evidence)
    return ok("memory", against, **evidence)


def in_mb(size: float) -> str:
    """Bytes for a person."""
    megabytes = size / 2**20
    if megabytes >= 1024:
        return f"{megabytes / 1024:,.1f} GB"
    return f"{megabytes:,.0f} MB" if megabytes >= 10 else f"{megabytes:,.1f} MB"
