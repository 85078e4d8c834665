"""Conversations as training examples: duplicates, token estimates, and statistics of many conversations."""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

Messages = Sequence[Mapping[str, object]]
TokenCount = Callable[[Messages], int]
CHARACTERS_PER_TOKEN = 4
"""An estimate for text without a tokenizer."""
MAX_VALUES = 400
"""Number of values that are kept of a distribution, to draw it."""
MAX_SYSTEM_CHARACTERS = 2000
EXAMPLES = 3
_SPACE = re.compile(r"\s+")
_SHAPE = re.compile(r"[\W\d_]+")


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages as a policy sees them: an optional system prompt, then environment and policy in turns."""

    messages: list[dict[str, str]]
    """`{"role": "system" | "user" | "assistant", "content": text}`. Replies on an environment that separates reasoning
    from the answer also have `reasoning`, which is learned before it."""
    learned: tuple[bool, ...]
    """Whether each reply carries loss. Replies that were not parsed carry none."""
    reward: float | None = None
    level: int | None = None
    task: str = ""
    """`train/17`, if it is known."""
    version: int | None = None
    """Number of the environment version that it was played on."""
    source: str = ""
    """Id of the rollout."""
    reasoning: int = 0
    """Number of replies with separate reasoning text that is not learned."""

    @property
    def system(self) -> str:
        first = self.messages[0] if self.messages else {}
        return first["content"] if first.get("role") == "system" else ""

    def under(self, system: str) -> "Conversation":
        rest = [message for message in self.messages if message["role"] != "system"]
        return replace(self, messages=[{"role": "system", "content": system}, *rest] if system else rest)


def is_understood(step: Mapping[str, object]) -> bool:
    """Whether the reply of a stored step was parsed; of several tool calls, all of them."""
    calls = step.get("calls")
    notes = [call.get("note") for call in calls] if isinstance(calls, list) else []
    return step.get("action") is not None and all(note is None for note in notes)


def estimate_tokens(messages: Messages) -> int:
    return sum(len(str(message.get("content", ""))) for message in messages) // CHARACTERS_PER_TOKEN


@dataclass
class DuplicateIndex:
    """Recognizes conversations that came before."""

    near: int = 0
    """Number of conversations that differ from an earlier one only in numbers, case and punctuation."""
    _exact: set[bytes] = field(default_factory=set)
    _shapes: set[bytes] = field(default_factory=set)

    def is_new(self, messages: Messages) -> bool:
        """Whether no earlier conversation has the same roles and texts, apart from white space."""
        exact = _digest(messages, _SPACE)
        if exact in self._exact:
            return False
        self._exact.add(exact)
        shape = _digest(messages, _SHAPE)
        self.near += shape in self._shapes
        self._shapes.add(shape)
        return True


def _digest(messages: Messages, pattern: re.Pattern[str]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for message in messages:
        text = pattern.sub(" ", str(message.get("content", ""))).strip()
        text = text if pattern is _SPACE else text.casefold()
        digest.update(f"{message.get('role')}\0{text}\0".encode("utf-8", "replace"))
    return digest.digest()


@dataclass
class ExampleStatistics:
    """Statistics of conversations, added one by one."""

    conversations: int = 0
    replies: int = 0
    learned: int = 0
    """Replies that carry loss."""
    tokens: int = 0
    characters: int = 0
    repeats: int = 0
    reasoning: int = 0
    silent: int = 0
    """Conversations without a reply to learn from."""
    rewards: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    """In tokens."""
    levels: dict[int, set[str]] = field(default_factory=dict)
    versions: Counter[int] = field(default_factory=Counter)
    systems: Counter[str] = field(default_factory=Counter)
    examples: list[Conversation] = field(default_factory=list)
    _seen: DuplicateIndex = field(default_factory=DuplicateIndex)

    def is_repeated(self, conversation: Conversation) -> bool:
        """Whether the same conversation came before. It is counted as a repeat; callers that skip it do not add it."""
        is_new = self._seen.is_new(conversation.messages)
        self.repeats += not is_new
        return not is_new

    def add(self, conversation: Conversation, count: TokenCount = estimate_tokens) -> None:
        messages = conversation.messages
        length = count(messages)
        self.conversations += 1
        self.replies += sum(message["role"] == "assistant" for message in messages)
        self.learned += sum(conversation.learned)
        self.silent += not any(conversation.learned)
        self.tokens += length
        self.characters += sum(len(message["content"]) for message in messages)
        self.reasoning += conversation.reasoning
        self.lengths.append(length)
        if len(self.examples) < EXAMPLES:
            self.examples.append(conversation)
        if conversation.reward is not None:
            self.rewards.append(conversation.reward)
        if conversation.level is not None:
            self.levels.setdefault(conversation.level, set()).add(conversation.task)
        if conversation.version is not None:
            self.versions[conversation.version] += 1
        if conversation.system in self.systems or len(self.systems) < 20:  # others are not counted
            self.systems[conversation.system] += 1

    def as_json(self) -> dict[str, object]:
        """Return the statistics with thinned distributions, without the examples."""
        names = ("conversations", "replies", "learned", "tokens", "characters", "repeats", "reasoning", "silent")
        rewards, systems = self.rewards, []
        for text, count in self.systems.most_common():
            is_long = len(text) > MAX_SYSTEM_CHARACTERS
            shown = f"{text[:MAX_SYSTEM_CHARACTERS]} …" if is_long else text
            systems.append({"text": shown, "conversations": count})
        return {
            **{name: getattr(self, name) for name in names},
            "longest": max(self.lengths, default=0),
            "near_repeats": self._seen.near,
            "understood": self.learned / self.replies if self.replies else None,
            "reward": {"mean": sum(rewards) / len(rewards), "low": min(rewards), "high": max(rewards)}
            if rewards
            else None,
            "rewards": thinned(rewards),
            "lengths": thinned(self.lengths),
            "tasks_by_level": {str(level): len(tasks) for level, tasks in sorted(self.levels.items())},
            "versions": {str(number): count for number, count in sorted(self.versions.items())},
            "systems": systems,
        }


def thinned(values: Sequence[float]) -> list[float]:
    """Sorted values, at most `MAX_VALUES` of them at even distances, which keeps the shape of the distribution."""
    ordered = sorted(values)
    if len(ordered) <= MAX_VALUES:
        return ordered
    return [ordered[round(place * (len(ordered) - 1) / (MAX_VALUES - 1))] for place in range(MAX_VALUES)]
