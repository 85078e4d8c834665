"""What the warm-up imitates, as tokens: scripted play, stored rollouts, an uploaded file, marked episodes, mixed.

Gathered once and kept in a file, so that a resumed run learns from the same lessons in the same order.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from backend.core.session import transaction
from backend.domain.rollouts.rollout import Rollout
from backend.domain.training.configuration import Stage
from backend.domain.training.examples import Conversation
from backend.domain.vocabulary import Phase
from backend.errors import InvalidInput
from backend.runs.tables import Run
from backend.training.example_sources import (
    LearningScope,
    RolloutSelection,
    conversations_of,
    demonstrated_rollouts,
    environment_system,
    passing_episodes,
    sampled_conversations,
    selected_rollouts,
)
from backend.training.tables import ExampleFile
from workers.models.chat import ChatTokens
from workers.training.context import Stopped, TrainingContext
from workers.training.demonstrations import lesson_of_conversation, mixed
from workers.training.examples import BrokenStep, TrainingExample, lesson_of
from workers.training.teacher import Teacher


@dataclass
class Gathered:
    """The lessons of one source, and what was left out of it."""

    lessons: list[TrainingExample] = field(default_factory=list)
    too_long: int = 0
    """More tokens than the model's context."""
    silent: int = 0
    """No reply in them was understood."""

    def told(self, source: str, context: int) -> str:
        left = [f"{self.too_long:,} longer than {context:,} tokens left out"] if self.too_long else []
        left += [f"{self.silent:,} without a reply that was understood left out"] if self.silent else []
        return f"{len(self.lessons):,} lessons from {source}" + (f" ({', '.join(left)})" if left else "")


def gathered_lessons(bench: TrainingContext, model: Any, tokenizer: Any) -> list[TrainingExample]:
    """All lessons, main source first; read back where they were gathered before."""
    folder = bench.folder_of(Stage.SFT)
    kept, said = folder / "lessons.jsonl", folder / "lessons.json"
    if kept.exists():
        bench.summary["lessons"] = json.loads(said.read_text())
        return kept_lessons(folder)
    choice, context = bench.configuration.sft, context_of(model, tokenizer)
    chat = ChatTokens(tokenizer)
    main = _fitting(_gather(bench, chat, choice.source, choice.scripted_episodes), context)
    parts: dict[str, Gathered] = {choice.source: main}
    for source, share in choice.shares.items():
        if source != choice.source and share > 0:
            wanted = min(choice.scripted_episodes, max(1, round(len(main.lessons) * share)))
            parts[source] = _fitting(_gather(bench, chat, source, wanted), context)
    for source, part in parts.items():
        bench.recorder.log(part.told(source, context), "warning" if part.too_long else "info")
    others = [(part.lessons, choice.shares[source]) for source, part in parts.items() if source != choice.source]
    lessons = mixed(main.lessons, others)
    summary = {
        source: {"lessons": len(part.lessons), "too_long": part.too_long, "silent": part.silent}
        for source, part in parts.items()
    }
    bench.summary["lessons"] = summary
    _write(said, [json.dumps(summary)])
    _write(kept, [json.dumps(asdict(lesson)) for lesson in lessons])
    return lessons


def context_of(model: Any, tokenizer: Any) -> int:
    """The longest conversation that the model takes, in tokens."""
    by_model = getattr(model.config, "max_position_embeddings", None) or 1 << 30
    return min(int(by_model), int(min(tokenizer.model_max_length or 1 << 30, 1 << 30)))


def _fitting(gathered: Gathered, context: int) -> Gathered:
    fitting = [lesson for lesson in gathered.lessons if len(lesson.tokens) <= context]
    too_long = len(gathered.lessons) - len(fitting)
    if too_long > len(fitting):
        raise BrokenStep(
            f"most lessons are too long: {too_long:,} of {len(gathered.lessons):,} have more tokens than the model's "
            f"context of {context:,}"
        )
    return Gathered(fitting, too_long, gathered.silent)


def _gather(bench: TrainingContext, chat: ChatTokens, source: str, episodes: int) -> Gathered:
    if source == "script":
        return Gathered(_scripted(bench, chat, episodes))
    _tell_choice(bench, source)
    gathered = Gathered()
    for conversation in conversations(bench, source):
        lesson = lesson_of_conversation(conversation, chat)
        if lesson is None:
            gathered.silent += 1
        else:
            gathered.lessons.append(lesson)
            done = len(gathered.lessons)
            bench.recorder.progress(phase="reading lessons", done=done, total=done + 1, message=source)
        if bench.recorder.should_stop():
            raise Stopped
    if not gathered.lessons:
        raise BrokenStep(_NOTHING[source])
    return gathered


_NOTHING = {
    "rollouts": "no stored rollout passes: choose other runs (sft.runs) or another filter (sft.where), and play "
    "training tasks, because held-out ones never come in",
    "file": "the uploaded file holds nothing to learn from",
    "demonstrations": "no marked episode of this version fits: mark some, or set sft.demonstrations to 0",
}


def conversations(bench: TrainingContext, source: str) -> Iterator[Conversation]:
    """Of a source that is stored already, in the order in which they are taken."""
    read: dict[str, Callable[[TrainingContext], Iterator[Conversation]]] = {
        "rollouts": _of_rollouts,
        "file": _of_file,
        "demonstrations": _of_demonstrations,
    }
    replaces = bench.configuration.sft.system == "environment" and source != "demonstrations"
    system = _own_system(bench) if replaces else None
    for conversation in read[source](bench):
        yield conversation if system is None else conversation.under(system)


def _of_rollouts(bench: TrainingContext) -> Iterator[Conversation]:
    with transaction() as session:
        yield from conversations_of(session, _chosen(session, bench).ids)


def _chosen(session: Session, bench: TrainingContext) -> RolloutSelection:
    configuration, run_id = bench.configuration, bench.assignment.run_id
    versions = tuple(env.version_id for env in bench.assignment.envs)
    asked = LearningScope(versions, configuration.seed, run_id, session.get_one(Run, run_id).created_at)
    try:
        return selected_rollouts(session, configuration.sft, asked)
    except InvalidInput as error:
        raise BrokenStep(" ".join(error.fields.values())) from error


def _tell_choice(bench: TrainingContext, source: str) -> None:
    """What is odd about where the lessons come from."""
    log = bench.recorder.log
    if source == "rollouts":
        with transaction() as session:
            chosen = _chosen(session, bench)
        if chosen.foreign:
            log(f"{chosen.foreign:,} of the rollouts were played on another version of the environment", "warning")
        if chosen.heldout or chosen.judged:
            log(f"left out: {chosen.heldout:,} rollouts on held-out tasks, {chosen.judged:,} judged a hack or broken")
    if bench.configuration.sft.system == "environment" and _own_system(bench) is None:
        log("the conversations keep their own system prompts: the environment's is not the same everywhere", "warning")


def _of_file(bench: TrainingContext) -> Iterator[Conversation]:
    choice = bench.configuration.sft
    with transaction() as session:
        file = session.get(ExampleFile, choice.file)
    if file is None:
        raise BrokenStep("the file of conversations (sft.file) was deleted")
    yield from sampled_conversations(file, choice, bench.configuration.seed)


def _of_demonstrations(bench: TrainingContext) -> Iterator[Conversation]:
    versions = [env.version_id for env in bench.assignment.envs]
    with transaction() as session:
        yield from conversations_of(session, demonstrated_rollouts(session, versions))


def _own_system(bench: TrainingContext) -> str | None:
    """What takes the place of the conversations' own system prompts; None where there is no one prompt: several
    environments are played, or episodes alone list the tools."""
    return None if bench.assignment.is_mixed else environment_system(bench.assignment.manifest)


def _scripted(bench: TrainingContext, chat: ChatTokens, episodes: int) -> list[TrainingExample]:
    """The script's play, stored as warm-up rollouts."""
    choice = bench.configuration.sft
    lessons: dict[int, TrainingExample] = {}
    failed = 0

    def take(rollout: Rollout) -> None:
        nonlocal failed
        if rollout.is_completed:
            lessons[rollout.group] = lesson_of(rollout, end=chat.end)
        else:
            failed += 1
        bench.recorder.progress(phase="collecting lessons", done=len(lessons) + failed, total=episodes)

    bench.env_pool.play(
        bench.warm_up_plans(episodes),
        Teacher(choice.script, chat, noise=choice.noise),
        phase=Phase.WARM_UP,
        seed=bench.configuration.seed,
        recorder=bench.recorder,
        on_rollout=take,
        should_stop=bench.recorder.should_stop,
    )
    if len(lessons) + failed < episodes:
        raise Stopped
    if len(lessons) < episodes / 2:
        raise BrokenStep(f"{failed:,} of {episodes:,} scripted episodes failed")
    return [lessons[group] for group in sorted(_imitated(bench, lessons))]


def _imitated(bench: TrainingContext, lessons: Mapping[int, TrainingExample]) -> set[int]:
    """The script's episodes that pass the warm-up's filter."""
    where = bench.configuration.sft.script_where
    if not where.strip():
        return set(lessons)
    with transaction() as session:
        passing = passing_episodes(session, bench.assignment.run_id, where) & lessons.keys()
    if not passing:
        raise BrokenStep(f"none of {len(lessons):,} scripted episodes passes the filter `{where}` (sft.script_where)")
    bench.recorder.log(f"{len(passing):,} of {len(lessons):,} scripted episodes pass `{where}`")
    return passing


def texts_to_read(bench: TrainingContext, count: int) -> list[str]:
    """What is said in the first stored conversations that will be learned, for a tokenizer that is made from text."""
    stored = [source for source, share in bench.configuration.sft.shares.items() if share > 0]
    stored = [source for source in stored if source in {"rollouts", "file"}]
    return [
        str(message["content"])
        for source in stored
        for conversation in islice(conversations(bench, source), count)
        for message in conversation.messages
    ]


def _write(path: Path, lines: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text("".join(f"{line}\n" for line in lines))
    partial.replace(path)


def kept_lessons(folder: Path) -> list[TrainingExample]:
    """Those that were gathered before."""
    with (folder / "lessons.jsonl").open() as lines:
        return [TrainingExample(**json.loads(line)) for line in lines]
