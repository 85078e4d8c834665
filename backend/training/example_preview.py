"""What an SFT warm-up would learn from: a preview before the run starts."""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice
from typing import Any

from sqlalchemy.orm import Session, joinedload

from backend.checkpoints.tables import Checkpoint
from backend.core import artifacts
from backend.domain.environments.manifest import Manifest
from backend.domain.training.configuration import ModelChoice, TrainingConfiguration
from backend.domain.training.examples import EXAMPLES, Conversation, ExampleStatistics, TokenCount
from backend.domain.training.sft_data import about_tokens
from backend.environments.tables import EnvironmentVersion
from backend.errors import InvalidInput, NotFound
from backend.runs.tables import Run
from backend.training.example_files import deleted_at
from backend.training.example_sources import (
    Asked,
    Chosen,
    chosen_rollouts,
    conversations_in,
    conversations_of,
    demonstrated_rollouts,
    scripted_rollouts,
    system_of,
)
from backend.training.preflight import stored_context
from backend.training.schemas import TrainingRequest, resolve_configuration
from backend.training.tables import ExampleFile

_MARKS = 2
"""Tokens that a chat template adds to a message, at least: who speaks, and its end."""
_ABOUT = "about, 4 characters each"
_MOST_BYTES = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class Measure:
    """How tokens are counted, and how many fit."""

    count: TokenCount
    told: str
    """What the numbers are, for a person."""
    context: int | None = None


def measure_of(session: Session, choice: ModelChoice) -> Measure:
    match choice.source:
        case "checkpoint" if choice.checkpoint is not None:
            return _of_checkpoint(session, choice.checkpoint)
        case "scratch":
            return Measure(about_tokens, _ABOUT, choice.context)
        case _:
            return Measure(about_tokens, _ABOUT)


def _of_checkpoint(session: Session, checkpoint_id: uuid.UUID) -> Measure:
    row = session.get(Checkpoint, checkpoint_id)
    if row is None or row.pruned_at is not None or find_spec("tokenizers") is None:
        return Measure(about_tokens, _ABOUT)
    try:
        count = _counter(_read(f"{row.artifact}/tokenizer.json"))
    except (OSError, ValueError):
        return Measure(about_tokens, _ABOUT)
    return Measure(count, "by the checkpoint's tokenizer", stored_context(row.artifact))


def _counter(text: bytes) -> TokenCount:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(text.decode())
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(str(error)) from error

    def count(messages: Sequence[Mapping[str, Any]]) -> int:
        texts = [str(message["content"]) for message in messages]
        return sum(len(found.ids) + _MARKS for found in tokenizer.encode_batch(texts, add_special_tokens=False))

    return count


def _read(key: str) -> bytes:
    with artifacts.open_file(key) as file:
        return file.read(_MOST_BYTES)


LOOKED_AT = 2000
"""Conversations of each source whose texts are read."""


@dataclass
class SourcePreview:
    """One source of the lessons."""

    source: str
    share: float
    """Of all lessons."""
    available: int
    """Conversations that there are; of a script, episodes that it will play."""
    found: ExampleStatistics = field(default_factory=ExampleStatistics)
    """Of those that were read."""
    too_long: int = 0
    """Of those that were read, longer than the model's context."""
    warnings: list[str] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    file: ExampleFile | None = None

    @property
    def is_whole(self) -> bool:
        """Were all of them read?"""
        return self.found.conversations >= self.available

    def as_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "share": self.share,
            "available": self.available,
            "looked_at": self.found.conversations,
            "too_long": self.too_long,
            "warnings": self.warnings,
            "runs": [{"id": str(run.id), "name": run.name} for run in self.runs],
            "file": {"id": str(self.file.id), "name": self.file.name} if self.file else None,
            "statistics": self.found.as_json(),
            "examples": [{"messages": each.messages, "reward": each.reward} for each in self.found.examples],
        }


@dataclass(frozen=True, slots=True)
class ExamplePreview:
    """All sources, the main one first."""

    sources: list[SourcePreview]
    measure: Measure
    system: str | None
    """The environment's system prompt; None where only a running episode knows its tools."""

    def as_json(self) -> dict[str, Any]:
        return {
            "tokens_are": self.measure.told,
            "context": self.measure.context,
            "system": self.system,
            "sources": [source.as_json() for source in self.sources],
        }


def preview(session: Session, version: EnvironmentVersion, configuration: TrainingConfiguration) -> ExamplePreview:
    """Raises InvalidInput where the choice names what is not there."""
    choice = configuration.sft
    measure, system = measure_of(session, configuration.model), system_of(Manifest.model_validate(version.manifest))
    ordered = [choice.source, *(name for name, share in choice.shares.items() if name != choice.source and share > 0)]
    looking = _Looking(session, version, configuration, measure, system)
    return ExamplePreview([looking.at(source) for source in ordered], measure, system)


@dataclass(frozen=True, slots=True)
class _Looking:
    """What every source is looked at with."""

    session: Session
    version: EnvironmentVersion
    configuration: TrainingConfiguration
    measure: Measure
    system: str | None

    def at(self, source: str) -> SourcePreview:
        look = {
            "script": self._script,
            "rollouts": self._rollouts,
            "file": self._file,
            "demonstrations": self._demonstrations,
        }[source]
        seen, conversations = look(SourcePreview(source, self.configuration.sft.shares[source], 0))
        self._read(seen, conversations)
        return seen

    def _script(self, seen: SourcePreview) -> tuple[SourcePreview, Iterable[Conversation]]:
        """It has not played yet: what it played in an earlier run stands for it."""
        choice = self.configuration.sft
        seen.available = choice.scripted_episodes
        offered = Manifest.model_validate(self.version.manifest).proctor.scripts
        if choice.script not in offered:
            names = ", ".join(offered) or "none"
            seen.warnings.append(f"The environment offers no script {choice.script}; it offers: {names}.")
        ids = scripted_rollouts(self.session, self.version.id, choice.script, LOOKED_AT)
        return seen, conversations_of(self.session, ids)

    def _rollouts(self, seen: SourcePreview) -> tuple[SourcePreview, Iterable[Conversation]]:
        asked = Asked((self.version.id,), self.configuration.seed)
        chosen = chosen_rollouts(self.session, self.configuration.sft, asked)
        seen.available, seen.runs = len(chosen.ids), chosen.runs
        seen.warnings += _said_of(chosen)
        return seen, conversations_of(self.session, chosen.ids[:LOOKED_AT])

    def _file(self, seen: SourcePreview) -> tuple[SourcePreview, Iterable[Conversation]]:
        file = self.session.get(ExampleFile, self.configuration.sft.file)
        if file is None or deleted_at(file) is not None:
            raise InvalidInput(fields={"sft.file": "There is no such file of conversations."})
        seen.file = file
        seen.available = min(file.conversations, self.configuration.sft.most)
        return seen, islice(conversations_in(file), LOOKED_AT)

    def _demonstrations(self, seen: SourcePreview) -> tuple[SourcePreview, Iterable[Conversation]]:
        ids = demonstrated_rollouts(self.session, [self.version.id])
        seen.available = len(ids)
        if not ids:
            seen.warnings.append("No episode of this version is marked: mark some, or set sft.demonstrations to 0.")
        return seen, conversations_of(self.session, ids[:LOOKED_AT])

    def _read(self, seen: SourcePreview, conversations: Iterable[Conversation]) -> None:
        context = self.measure.context
        for conversation in self._as_learned(seen.source, conversations):
            before = seen.found.tokens
            seen.found.is_repeated(conversation)
            seen.found.add(conversation, self.measure.count)
            seen.too_long += context is not None and seen.found.tokens - before > context
        seen.warnings += self._said_of_texts(seen)

    def _as_learned(self, source: str, conversations: Iterable[Conversation]) -> Iterator[Conversation]:
        replaced = self.configuration.sft.system == "environment" and source in {"rollouts", "file"}
        for conversation in conversations:
            yield conversation.under(self.system) if replaced and self.system is not None else conversation

    def _said_of_texts(self, seen: SourcePreview) -> Iterator[str]:
        found = seen.found
        if seen.too_long:
            told = f"{self.measure.context:,} tokens ({self.measure.told})"
            yield f"{seen.too_long:,} are longer than the model's context of {told} and will be left out."
        if found.silent:
            yield f"{found.silent:,} hold no reply that was understood and will be left out."
        if found.reasoning:
            yield f"The reasoning of {found.reasoning:,} replies is not imitated, only their answers."
        others = sum(count for text, count in found.systems.items() if text != (self.system or ""))
        if others and self.system is not None:
            yield (
                f"{others:,} have another system prompt than the environment's; with sft.system=environment its own "
                "takes the place."
            )


def _said_of(chosen: Chosen) -> Iterator[str]:
    if not chosen.ids:
        yield "No stored rollout passes. Play training tasks (split train): held-out ones never come in."
    if chosen.passing > len(chosen.ids):
        yield f"{chosen.passing:,} pass; {len(chosen.ids):,} of them are drawn by the seed (sft.most)."
    if chosen.heldout:
        yield f"{chosen.heldout:,} on held-out tasks are left out: nothing may be learned from what examines."
    if chosen.judged:
        yield f"{chosen.judged:,} are left out, because a person judged them a hack or a broken reward."
    if chosen.foreign:
        yield f"{chosen.foreign:,} were played on another version of the environment, whose rules may differ."
    if chosen.skipped:
        names = ", ".join(chosen.skipped[:3])
        yield f"{len(chosen.skipped):,} runs have no such column or metric and are left out: {names}."


_CHUNK = 1 << 20
_BLOCKS = ("recipe", "seed", "model", "sft")
"""What of a configuration says what is learned; what is wrong elsewhere is told where the run is started."""


def preview_of(session: Session, request: TrainingRequest) -> ExamplePreview:
    """Raises InvalidInput."""
    version = session.get(EnvironmentVersion, request.version_id, options=[joinedload(EnvironmentVersion.environment)])
    if version is None:
        raise InvalidInput(fields={"version_id": "There is no such environment version."})
    choices = {name: value for name, value in request.configuration.items() if name in _BLOCKS}
    return preview(session, version, resolve_configuration(request.preset, choices))


def first_conversations(row: ExampleFile) -> list[Conversation]:
    try:
        return list(islice(conversations_in(row), EXAMPLES))
    except FileNotFoundError as error:
        raise NotFound("The conversations of this file are gone from the artifact store.") from error
