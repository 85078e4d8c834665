"""Sources of the warm-up's training examples: scripted play, stored rollouts, an uploaded file, demonstrations.

Examples are collected once and kept in a file, so that a resumed run learns from the same ones in the same order.
"""

import json
import random
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sqlalchemy.orm import Session
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from backend.core.session import transaction
from backend.domain.environments.manifest import Manifest
from backend.domain.environments.prompts import write_reply
from backend.domain.errors import PolicyError
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
    own_episodes,
    sampled_conversations,
    selected_rollouts,
)
from backend.training.tables import ExampleFile
from workers.models.chat import ChatTokens
from workers.policies.base import EpisodeStart, Player, Policy, Reply, TokenTrace, Turn
from workers.storage.rollouts import rollout_id
from workers.training.checkpoints import replace_file
from workers.training.context import TrainingContext, TrainingStopped
from workers.training.curriculum import single_plans
from workers.training.examples import BrokenStep, TrainingExample, example_of, example_of_conversation, mix_examples

EXAMPLES_FILE, SUMMARY_FILE = "lessons.jsonl", "lessons.json"
UNBOUNDED = 1 << 30
NO_EXAMPLES = {
    "rollouts": "no stored rollout passes: choose other runs (sft.runs) or another filter (sft.where), and play "
    "training tasks, because held-out tasks are never used",
    "file": "the uploaded file contains no reply to learn from",
    "demonstrations": "no demonstration of this version fits: mark some, or set sft.demonstrations to 0",
}
MOST_SPOILED = 2
ILLEGAL_SHARE = 0.5
"""Share of illegal actions among invalid attempts, if the environment lists legal ones. The others cannot be parsed."""


@dataclass
class SourceExamples:
    examples: list[TrainingExample]
    too_long: int = 0  # longer than the model's context
    silent: int = 0  # no reply in them could be parsed


def collect_examples(
    context: TrainingContext, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> list[TrainingExample]:
    """Return all examples, main source first. Reads them back if they were collected before."""
    folder = context.assignment.folder / Stage.SFT
    if (folder / EXAMPLES_FILE).exists():
        context.summary["lessons"] = json.loads((folder / SUMMARY_FILE).read_text())
        return read_examples(folder)
    choice, log = context.configuration.sft, context.recorder.log
    chat = ChatTokens(tokenizer)
    by_model = getattr(model.config, "max_position_embeddings", None) or UNBOUNDED
    longest = min(int(by_model), int(min(tokenizer.model_max_length or UNBOUNDED, UNBOUNDED)))
    main = _collect(context, chat, choice.source, choice.scripted_episodes, longest)
    sources: dict[str, SourceExamples] = {choice.source: main}
    for source, share in choice.shares.items():
        if source != choice.source and share > 0:
            count = min(choice.scripted_episodes, max(1, round(len(main.examples) * share)))
            sources[source] = _collect(context, chat, source, count, longest)
    for source, part in sources.items():
        skipped = [f"{part.too_long:,} longer than {longest:,} tokens skipped"] if part.too_long else []
        skipped += [f"{part.silent:,} without a parsed reply skipped"] if part.silent else []
        note = f" ({', '.join(skipped)})" if skipped else ""
        log(f"{len(part.examples):,} training examples from {source}{note}", "warning" if part.too_long else "info")
    others = [(part.examples, choice.shares[source]) for source, part in sources.items() if source != choice.source]
    examples = mix_examples(main.examples, others)
    summary = {
        source: {"lessons": len(part.examples), "too_long": part.too_long, "silent": part.silent}
        for source, part in sources.items()
    }
    context.summary["lessons"] = summary
    write_examples(folder, examples, summary)
    return examples


def write_examples(folder: Path, examples: Iterable[TrainingExample], summary: object) -> None:
    """Keep the examples of a stage for a resume. Files are complete once the examples are there."""
    replace_file(folder / SUMMARY_FILE, json.dumps(summary))
    replace_file(folder / EXAMPLES_FILE, "".join(f"{json.dumps(asdict(example))}\n" for example in examples))


def read_examples(folder: Path) -> list[TrainingExample]:
    with (folder / EXAMPLES_FILE).open() as lines:
        return [TrainingExample(**json.loads(line)) for line in lines]


def _collect(context: TrainingContext, chat: ChatTokens, source: str, episodes: int, longest: int) -> SourceExamples:
    """Return the examples of a source that have at most `longest` tokens. `episodes`: scripted play only."""
    collected = _scripted(context, chat, episodes) if source == "script" else _stored(context, chat, source)
    fitting = [example for example in collected.examples if len(example.tokens) <= longest]
    too_long = len(collected.examples) - len(fitting)
    if too_long > len(fitting):
        raise BrokenStep(
            f"most training examples are too long: {too_long:,} of {len(collected.examples):,} have more tokens than "
            f"the model's context of {longest:,}"
        )
    return SourceExamples(fitting, too_long, collected.silent)


def _scripted(context: TrainingContext, chat: ChatTokens, episodes: int) -> SourceExamples:
    choice, recorder = context.configuration.sft, context.recorder
    examples: dict[int, TrainingExample] = {}
    groups: dict[uuid.UUID, int] = {}
    failed = 0

    def take(rollout: Rollout) -> None:
        nonlocal failed
        if rollout.is_completed:
            examples[rollout.group] = example_of(rollout, end=chat.end)
            groups[rollout_id(context.assignment.run_id, rollout)] = rollout.group
        else:
            failed += 1
        recorder.progress(phase="collecting training examples", done=len(examples) + failed, total=episodes)

    context.env_pool.play(
        single_plans(context.assignment.envs, episodes),
        Teacher(choice.script, chat, noise=choice.noise),
        phase=Phase.WARM_UP,
        seed=context.configuration.seed,
        recorder=recorder,
        on_rollout=take,
        should_stop=recorder.should_stop,
    )
    if len(examples) + failed < episodes:
        raise TrainingStopped
    if len(examples) < episodes / 2:
        raise BrokenStep(f"{failed:,} of {episodes:,} scripted episodes failed")
    passing, where = set(examples), choice.script_where
    if where.strip():
        with transaction() as session:
            own = own_episodes(session, context.assignment.run_id, where)
        passing = {groups[id_] for id_ in own if id_ in groups}
        if not passing:
            raise BrokenStep(
                f"none of {len(examples):,} scripted episodes passes the filter `{where}` (sft.script_where)"
            )
        recorder.log(f"{len(passing):,} of {len(examples):,} scripted episodes pass `{where}`")
    return SourceExamples([examples[group] for group in sorted(passing)])


def _stored(context: TrainingContext, chat: ChatTokens, source: str) -> SourceExamples:
    recorder = context.recorder
    if source == "rollouts":
        with transaction() as session:
            chosen = _chosen_rollouts(session, context)
        if chosen.foreign:
            message = f"{chosen.foreign:,} of the rollouts were played on another version of the environment"
            recorder.log(message, "warning")
        if chosen.heldout or chosen.judged:
            recorder.log(
                f"skipped: {chosen.heldout:,} rollouts on held-out tasks, {chosen.judged:,} judged a hack or broken"
            )
    assignment = context.assignment
    has_one_prompt = not assignment.is_mixed and environment_system(assignment.manifest) is not None
    if context.configuration.sft.system == "environment" and not has_one_prompt:
        message = "the conversations keep their own system prompts: the environment's prompt is not always the same"
        recorder.log(message, "warning")
    collected = SourceExamples([])
    for conversation in conversations(context, source):
        example = example_of_conversation(conversation, chat)
        if example is None:
            collected.silent += 1
        else:
            collected.examples.append(example)
            done = len(collected.examples)
            recorder.progress(phase="reading training examples", done=done, total=done + 1, message=source)
        if recorder.should_stop():
            raise TrainingStopped
    if not collected.examples:
        raise BrokenStep(NO_EXAMPLES[source])
    return collected


def conversations(context: TrainingContext, source: str) -> Iterator[Conversation]:
    configuration = context.configuration
    replaces = configuration.sft.system == "environment" and source != "demonstrations"
    is_one = replaces and not context.assignment.is_mixed  # else the prompts differ between environments
    system = environment_system(context.assignment.manifest) if is_one else None
    with transaction() as session:
        if source == "file":
            file = session.get(ExampleFile, configuration.sft.file)
            if file is None:
                raise BrokenStep("the file of conversations (sft.file) was deleted")
            stored: Iterable[Conversation] = sampled_conversations(file, configuration.sft, configuration.seed)
        elif source == "rollouts":
            stored = conversations_of(session, _chosen_rollouts(session, context).ids)
        else:
            versions = [env.version_id for env in context.assignment.envs]
            stored = conversations_of(session, demonstrated_rollouts(session, versions))
        for conversation in stored:
            yield conversation if system is None else conversation.under(system)


def _chosen_rollouts(session: Session, context: TrainingContext) -> RolloutSelection:
    configuration, run_id = context.configuration, context.assignment.run_id
    versions = tuple(env.version_id for env in context.assignment.envs)
    request = LearningScope(versions, configuration.seed, run_id, session.get_one(Run, run_id).created_at)
    try:
        return selected_rollouts(session, configuration.sft, request)
    except InvalidInput as error:
        raise BrokenStep(" ".join(error.fields.values())) from error


class ScriptIsSilent(PolicyError):
    """The environment's state offers no reply of the scripted policy."""

    is_retryable = False


@dataclass
class Teacher(Policy):
    """A scripted policy that, with probability `noise`, first tries a reply that will be rejected.

    The mask of its token trace is 1 for the scripted replies only: the loss of the warm-up.
    """

    script: str
    chat: ChatTokens
    noise: float = 0.0

    async def begin(self, start: EpisodeStart) -> "TeacherPlayer":
        return TeacherPlayer(self, start.manifest, random.Random(start.seed))


@dataclass
class TeacherPlayer(Player):
    teacher: Teacher
    manifest: Manifest
    chance: random.Random
    spoiled: int = 0
    read: int = 0  # messages in the trace
    tokens: TokenTrace = field(default_factory=TokenTrace)
    wants_scripts: bool = True

    async def act(self, turn: Turn) -> Reply:
        chat, reply = self.teacher.chat, turn.scripts.get(self.teacher.script)
        if reply is None:
            raise ScriptIsSilent(f"the environment's state offers no reply under scripts.{self.teacher.script}")
        if not self.tokens.prompt:
            self.tokens.prompt = list(chat.opening(turn.messages))
        else:
            self.tokens.append(chat.continuation(turn.messages[self.read :]))
        self.read = len(turn.messages) + 1
        attempt = self._invalid_attempt(reply, turn)
        reasoning = "" if self.manifest.proctor.agent.reasoning == "think" else None
        tokens = chat.reply(reply if attempt is None else attempt, reasoning)
        self.tokens.append(tokens, [0.0] * len(tokens) if attempt is None else None)
        return Reply(reply if attempt is None else attempt, tokens_out=len(tokens))

    def _invalid_attempt(self, reply: str, turn: Turn) -> str | None:
        """Return a reply that will be rejected, or None to play the scripted one."""
        turns_left = self.manifest.proctor.episode.max_turns - turn.index
        spec, chance = self.manifest.proctor.agent.action, self.chance
        if chance.random() >= self.teacher.noise or self.spoiled >= MOST_SPOILED:
            return None
        if self.manifest.proctor.agent.on_unparsable != "retry" or turns_left <= MOST_SPOILED:
            return None
        self.spoiled += 1
        # values that the schema allows and the observation does not list as legal
        legal, illegal = turn.observation.get(spec.choices or ""), []
        if isinstance(legal, list):
            schema = turn.action_schema.get("properties", {}).get(spec.field or "", {})
            possible = schema.get("enum")
            if possible is None and {"minimum", "maximum"} <= schema.keys():
                possible = list(range(int(schema["minimum"]), int(schema["maximum"]) + 1))[:1000]
            illegal = [value for value in possible or [] if value not in legal]
        if illegal and chance.random() < ILLEGAL_SHARE:
            return write_reply(spec, {spec.field or "": chance.choice(illegal)})
        if spec.format == "tag":  # a part is missing or doubled
            begin, end = f"<{spec.tag}>", f"</{spec.tag}>"
            value = reply.removeprefix(begin).removesuffix(end)
            return chance.choice(["", begin, end, value, begin + value, value + end, begin + reply, begin + end])
        return "" if spec.format == "text" else reply[: chance.randrange(len(reply) or 1)]

    def trace(self) -> TokenTrace | None:
        return self.tokens if self.tokens.prompt else None
