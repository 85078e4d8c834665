"""Conversations that an SFT warm-up imitates, and what there is to say of many of them."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backend.domain.training.sft_data import Seen, about_tokens

Messages = list[dict[str, Any]]
TokenCount = Callable[[Sequence[Mapping[str, Any]]], int]
MOST_SYSTEMS = 20
"""Different system prompts that are told apart."""
MOST_DRAWN = 400
"""Values of a distribution that are kept for its drawing."""
MOST_SHOWN = 2000
"""Characters of a system prompt that are kept beside the numbers."""
EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages as a policy sees them: a system prompt or none, then the environment and the policy in turns."""

    messages: Messages
    """`{"role": "system" | "user" | "assistant", "content": text}`"""
    learned: tuple[bool, ...]
    """Of each reply: is it imitated? What was not understood is not."""
    reward: float | None = None
    level: int | None = None
    task: str = ""
    """`train/17`, where it is known."""
    version: int | None = None
    """Number of the environment's version that it was played on."""
    source: str = ""
    """Id of the rollout."""
    reasoning: int = 0
    """Replies whose reasoning is left out: it is no part of what is imitated."""

    @property
    def system(self) -> str:
        first = self.messages[0] if self.messages else {}
        return str(first["content"]) if first.get("role") == "system" else ""

    def under(self, system: str) -> "Conversation":
        """The same beneath another system prompt."""
        rest = [message for message in self.messages if message["role"] != "system"]
        messages = [{"role": "system", "content": system}, *rest] if system else rest
        names = ("learned", "reward", "level", "task", "version", "source", "reasoning")
        return Conversation(messages, **{name: getattr(self, name) for name in names})


def is_understood(step: Mapping[str, Any]) -> bool:
    """Was the reply of this stored step taken as it was meant? Of several calls each must have been."""
    calls = step.get("calls") or ()
    return step.get("action") is not None and all(call.get("note") is None for call in calls)


@dataclass
class ExampleStatistics:
    """What conversations are like, gathered one by one."""

    conversations: int = 0
    replies: int = 0
    learned: int = 0
    """Replies that are imitated; the others were not understood."""
    tokens: int = 0
    characters: int = 0
    longest: int = 0
    """Tokens of the longest one."""
    repeats: int = 0
    """The same as an earlier one."""
    near_repeats: int = 0
    """Different from an earlier one in numbers, case and punctuation alone."""
    reasoning: int = 0
    silent: int = 0
    """Conversations without a reply to learn."""
    rewards: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    """In tokens."""
    levels: dict[int, set[str]] = field(default_factory=dict)
    """Different tasks by level."""
    versions: Counter[int] = field(default_factory=Counter)
    systems: Counter[str] = field(default_factory=Counter)
    examples: list[Conversation] = field(default_factory=list)
    _seen: Seen = field(default_factory=Seen)

    def is_repeated(self, conversation: Conversation) -> bool:
        """Did it come already? Then it is counted as a repeat; whoever leaves it out does not add it."""
        is_new = self._seen.is_new(conversation.messages)
        self.repeats += not is_new
        self.near_repeats = self._seen.near
        return not is_new

    def add(self, conversation: Conversation, count: TokenCount = about_tokens) -> None:
        messages = conversation.messages
        length = count(messages)
        self.conversations += 1
        self.replies += sum(message["role"] == "assistant" for message in messages)
        self.learned += sum(conversation.learned)
        self.silent += not any(conversation.learned)
        self.tokens += length
        self.longest = max(self.longest, length)
        self.characters += sum(len(str(message["content"])) for message in messages)
        self.reasoning += conversation.reasoning
        self.lengths.append(length)
        if len(self.examples) < EXAMPLES:
            self.examples.append(conversation)
        self._place(conversation)

    def _place(self, conversation: Conversation) -> None:
        if conversation.reward is not None:
            self.rewards.append(conversation.reward)
        if conversation.level is not None:
            self.levels.setdefault(conversation.level, set()).add(conversation.task)
        if conversation.version is not None:
            self.versions[conversation.version] += 1
        if conversation.system in self.systems or len(self.systems) < MOST_SYSTEMS:
            self.systems[conversation.system] += 1

    @property
    def understood(self) -> float | None:
        """Share of the replies that are imitated."""
        return self.learned / self.replies if self.replies else None

    def as_json(self) -> dict[str, Any]:
        """Without the examples and with the distributions thinned, to be stored and sent."""
        numbers = ("conversations", "replies", "learned", "tokens", "characters", "longest", "repeats", "near_repeats")
        return {
            **{name: getattr(self, name) for name in (*numbers, "reasoning", "silent", "understood")},
            "reward": _spread(self.rewards),
            "rewards": thinned(self.rewards),
            "lengths": thinned(self.lengths),
            "tasks_by_level": {str(level): len(tasks) for level, tasks in sorted(self.levels.items())},
            "versions": {str(number): count for number, count in sorted(self.versions.items())},
            "systems": [{"text": cut(text), "conversations": count} for text, count in self.systems.most_common()],
        }


def cut(text: str) -> str:
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]} …"


def thinned(values: Sequence[float]) -> list[float]:
    """The values in order, at most `MOST_DRAWN` of them at even distances: their distribution keeps its form."""
    ordered = sorted(values)
    if len(ordered) <= MOST_DRAWN:
        return ordered
    return [ordered[round(place * (len(ordered) - 1) / (MOST_DRAWN - 1))] for place in range(MOST_DRAWN)]


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    return {"mean": sum(values) / len(values), "low": min(values), "high": max(values)} if values else None
