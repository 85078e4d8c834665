"""Previews of training data before a run starts: examples of an SFT warm-up, and pairs of DPO."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice

from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.core import artifacts
from backend.domain.training.configuration import ModelChoice
from backend.domain.training.examples import EXAMPLES, Conversation, ExampleStatistics, TokenCount, estimate_tokens
from backend.domain.training.preferences import PreferencePair
from backend.errors import InvalidInput, NotFound
from backend.runs.tables import Run
from backend.training.example_sources import (
    LearningScope,
    RolloutSelection,
    conversations_in,
    conversations_of,
    demonstrated_rollouts,
    environment_system,
    scripted_rollouts,
    selected_rollouts,
)
from backend.training.preference_pairs import PairSelection, select_pairs, too_few
from backend.training.preflight import stored_context
from backend.training.schemas import TrainingRequest, resolve_configuration
from backend.training.service import version_of_request
from backend.training.tables import ExampleFile

MAX_PREVIEWED = 2000
"""Conversations of each source that are read."""
_MAX_TOKENIZER_BYTES = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class TokenMeasure:
    """How tokens are counted, and the context length of the model."""

    count: TokenCount
    told: str = "estimated, 4 characters each"
    """How they are counted, for a person."""
    context: int | None = None


@dataclass
class SourcePreview:
    """One source of the training examples."""

    source: str
    share: float
    """Its share of all training examples."""
    available: int = 0
    """Number of conversations; of a scripted policy, number of episodes to play."""
    found: ExampleStatistics = field(default_factory=ExampleStatistics)
    """Statistics of the conversations that were read."""
    too_long: int = 0
    """Conversations longer than the context of the model."""
    warnings: list[str] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    file: ExampleFile | None = None


@dataclass(frozen=True, slots=True)
class ExamplePreview:
    """All sources, the main one first."""

    sources: list[SourcePreview]
    measure: TokenMeasure
    system: str | None
    """The system prompt of the environment; None if its tools differ by episode."""


def preview_examples(session: Session, request: TrainingRequest) -> ExamplePreview:
    """Read the first conversations of each source. Raises InvalidInput for a source that does not exist."""
    version = version_of_request(session, request)
    # only settings that select training examples: errors in others are reported when the run is started
    blocks = ("recipe", "seed", "model", "sft")
    settings = {name: value for name, value in request.configuration.items() if name in blocks}
    configuration = resolve_configuration(request.preset, settings)
    sft, manifest = configuration.sft, version.typed_manifest
    measure, system = token_measure(session, configuration.model), environment_system(manifest)
    previews = []
    for source in [sft.source, *(name for name, share in sft.shares.items() if name != sft.source and share > 0)]:
        seen = SourcePreview(source, sft.shares[source])
        conversations: Iterable[Conversation]
        if source == "script":  # it plays when the run starts; episodes of an earlier run serve as examples
            seen.available = sft.scripted_episodes
            if sft.script not in manifest.proctor.scripts:
                names = ", ".join(manifest.proctor.scripts) or "none"
                seen.warnings.append(f"The environment has no scripted policy {sft.script}; it has: {names}.")
            ids = scripted_rollouts(session, version.id, sft.script, MAX_PREVIEWED)
            conversations = conversations_of(session, ids)
        elif source == "rollouts":
            selection = selected_rollouts(session, sft, LearningScope((version.id,), configuration.seed))
            seen.available, seen.runs = len(selection.ids), selection.runs
            seen.warnings += _selection_warnings(selection)
            conversations = conversations_of(session, selection.ids[:MAX_PREVIEWED])
        elif source == "file":
            file = session.get(ExampleFile, sft.file)
            if file is None or file.deleted_at is not None:
                raise InvalidInput(fields={"sft.file": "There is no such file of conversations."})
            seen.file, seen.available = file, min(file.conversations, sft.most)
            conversations = islice(conversations_in(file), MAX_PREVIEWED)
        else:
            ids = demonstrated_rollouts(session, [version.id])
            seen.available = len(ids)
            if not ids:
                text = "No episode of this version is marked as a demonstration. Mark some, or set the share to 0."
                seen.warnings.append(text)
            conversations = conversations_of(session, ids[:MAX_PREVIEWED])
        replaces_system = sft.system == "environment" and system is not None and source in {"rollouts", "file"}
        _read(seen, conversations, measure, system, replaces_system=replaces_system)
        previews.append(seen)
    return ExamplePreview(previews, measure, system)


def _selection_warnings(selection: RolloutSelection) -> list[str]:
    names = ", ".join(selection.skipped[:3])
    warnings = {
        "No stored rollout passes. Play training tasks (split train); held-out tasks are never used.": (
            not selection.ids
        ),
        f"{selection.passing:,} pass; a random sample of {len(selection.ids):,} is used (sft.most).": (
            selection.passing > len(selection.ids)
        ),
        f"{selection.heldout:,} on held-out tasks are excluded.": selection.heldout,
        f"{selection.judged:,} that were reviewed as a hack or a broken reward are excluded.": selection.judged,
        f"{selection.foreign:,} are from another version of the environment, whose rules may differ.": (
            selection.foreign
        ),
        f"{len(selection.skipped):,} runs without such a column or metric are excluded: {names}.": selection.skipped,
    }
    return [text for text, applies in warnings.items() if applies]


def _read(
    seen: SourcePreview,
    conversations: Iterable[Conversation],
    measure: TokenMeasure,
    system: str | None,
    *,
    replaces_system: bool,
) -> None:
    """Add the statistics of the conversations, as the policy would learn them, and warnings about their texts."""
    found = seen.found
    for conversation in conversations:
        learned = conversation.under(system or "") if replaces_system else conversation
        before = found.tokens
        found.is_repeated(learned)
        found.add(learned, measure.count)
        seen.too_long += measure.context is not None and found.tokens - before > measure.context
    if seen.too_long:
        context = f"{measure.context:,} tokens ({measure.told})"
        seen.warnings.append(f"{seen.too_long:,} are longer than the context of the model, {context}: excluded.")
    if found.silent:
        seen.warnings.append(f"{found.silent:,} have no parsed reply and are excluded.")
    if found.reasoning:
        seen.warnings.append(f"{found.reasoning:,} replies have separate reasoning text, which is not learned.")
    others = sum(count for text, count in found.systems.items() if text != (system or ""))
    if others and system is not None:
        seen.warnings.append(
            f"{others:,} have another system prompt than the environment. sft.system=environment replaces it."
        )


def token_measure(session: Session, choice: ModelChoice) -> TokenMeasure:
    """Count tokens with the tokenizer of the checkpoint if it is readable, else estimate them."""
    if choice.source == "scratch":
        return TokenMeasure(estimate_tokens, context=choice.context)
    row = session.get(Checkpoint, choice.checkpoint) if choice.source == "checkpoint" and choice.checkpoint else None
    if row is None or row.pruned_at is not None or find_spec("tokenizers") is None:
        return TokenMeasure(estimate_tokens)
    from tokenizers import Tokenizer

    try:
        with artifacts.open_file(f"{row.artifact}/tokenizer.json") as file:
            text = file.read(_MAX_TOKENIZER_BYTES).decode()
    except (OSError, ValueError):
        return TokenMeasure(estimate_tokens)
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception:  # the library raises nothing narrower
        return TokenMeasure(estimate_tokens)

    def count(messages: Sequence[Mapping[str, object]]) -> int:
        texts = [str(message["content"]) for message in messages]
        encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
        return sum(len(each.ids) + 2 for each in encoded)  # a chat template adds at least the role and its end

    return TokenMeasure(count, "by the checkpoint's tokenizer", stored_context(row.artifact))


def first_conversations(row: ExampleFile) -> list[Conversation]:
    """The first conversations of an uploaded file. Raises NotFound if its content is gone."""
    try:
        return list(islice(conversations_in(row), EXAMPLES))
    except FileNotFoundError as error:
        raise NotFound("The conversations of this file are missing from the artifact store.") from error


@dataclass(frozen=True, slots=True)
class ShownPair:
    """A pair with both conversations."""

    pair: PreferencePair
    chosen: Conversation
    rejected: Conversation


@dataclass(frozen=True, slots=True)
class PairPreview:
    selection: PairSelection
    by_reason: dict[str, int]
    shown: list[ShownPair]
    warnings: list[str]
    fewest: int
    """Number of pairs without which a run is refused."""


def preview_pairs(session: Session, request: TrainingRequest) -> PairPreview:
    """Select the pairs of a run with these settings. Raises InvalidInput for settings that cannot work."""
    version = version_of_request(session, request)
    # only settings that select pairs: errors in others are reported when the run is started
    blocks = ("recipe", "seed", "preferences")
    settings = {name: value for name, value in request.configuration.items() if name in blocks}
    configuration = resolve_configuration(request.preset, settings)
    selection = select_pairs(session, configuration, LearningScope((version.id,), configuration.seed))
    first = selection.pairs[:EXAMPLES]
    ids = [id_ for pair in first for id_ in (pair.chosen, pair.rejected)]
    by_id = {each.source: each for each in conversations_of(session, ids)}
    shown = [ShownPair(pair, by_id[str(pair.chosen)], by_id[str(pair.rejected)]) for pair in first]
    rollouts, fewest = selection.rollouts, configuration.preferences.fewest
    warnings = {
        too_few(selection, fewest): selection.found < fewest,
        f"{selection.found:,} pairs; a random sample of {len(selection.pairs):,} is used (preferences.most).": (
            selection.found > len(selection.pairs)
        ),
        f"{rollouts.heldout:,} rollouts on held-out tasks are excluded.": rollouts.heldout,
        f"{rollouts.foreign:,} rollouts are from another version of the environment, whose rules may differ.": (
            rollouts.foreign
        ),
    }
    return PairPreview(
        selection=selection,
        by_reason=dict(Counter(pair.reason for pair in selection.pairs)),
        shown=shown,
        warnings=[text for text, applies in warnings.items() if applies],
        fewest=fewest,
    )
