"""Scripted play as lessons: what the script replies is to be imitated, a spoiled attempt before it is not."""

import random
from collections.abc import Mapping
from typing import Any

from backend.domain.environments.manifest import ActionSpec
from backend.domain.environments.prompts import write_reply
from backend.domain.errors import PolicyError
from workers.models.chat import ChatTokens
from workers.policies.base import EpisodeStart, Reply, TokenTrace, Turn

MOST_SPOILED = 2
"""Attempts that an episode spends on what cannot be accepted."""
ILLEGAL_SHARE = 0.5
"""Of the spoiled attempts, where the environment says what is legal; the others cannot be read."""


class ScriptIsSilent(PolicyError):
    """The environment's state offers no reply of the script."""

    is_retryable = False


class Teacher:
    """A policy that follows a script and, with chance `noise`, first tries what will be turned down.

    Its token trace has mask 1 on the script's replies alone: the loss of the warm-up.
    """

    def __init__(self, script: str, chat: ChatTokens, *, noise: float = 0.0) -> None:
        self.script, self.chat, self.noise = script, chat, noise

    async def begin(self, start: EpisodeStart) -> "TeacherPlayer":
        return TeacherPlayer(self, start)

    async def aclose(self) -> None:
        """Nothing to close."""


class TeacherPlayer:
    """One lesson."""

    wants_scripts = True

    def __init__(self, teacher: Teacher, start: EpisodeStart) -> None:
        self._teacher, self._manifest = teacher, start.manifest
        self._chance = random.Random(start.seed)
        self._spoiled = 0
        self._read = 0
        self._trace = TokenTrace([], [], [], [])

    async def act(self, turn: Turn) -> Reply:
        reply = turn.scripts.get(self._teacher.script)
        if reply is None:
            raise ScriptIsSilent(f"the environment's state offers no reply under scripts.{self._teacher.script}")
        self._read_messages(turn)
        attempt = self._spoil(reply, turn)
        tokens = self._teacher.chat.reply(reply if attempt is None else attempt)
        self._append(tokens, 1 if attempt is None else 0)
        return Reply(reply if attempt is None else attempt, tokens_out=len(tokens))

    def _spoil(self, reply: str, turn: Turn) -> str | None:
        """An attempt that will be turned down, or None for this turn."""
        turns_left = self._manifest.proctor.episode.max_turns - turn.index
        is_retried = self._manifest.proctor.agent.on_unparsable == "retry"
        if self._chance.random() >= self._teacher.noise or self._spoiled >= MOST_SPOILED:
            return None
        if not is_retried or turns_left <= MOST_SPOILED:
            return None
        self._spoiled += 1
        spec = self._manifest.proctor.agent.action
        illegal = _illegal_values(spec, turn)
        if illegal and self._chance.random() < ILLEGAL_SHARE:
            return write_reply(spec, {spec.field or "": self._chance.choice(illegal)})
        return _unreadable(spec, reply, self._chance)

    def _read_messages(self, turn: Turn) -> None:
        if not self._trace.prompt:
            self._trace.prompt = list(self._teacher.chat.opening(turn.messages))
        else:
            self._append(self._teacher.chat.continuation(turn.messages[self._read :]), 0)
        self._read = len(turn.messages) + 1

    def _append(self, tokens: list[int], mask: int) -> None:
        self._trace.completion.extend(tokens)
        self._trace.mask += [mask] * len(tokens)
        self._trace.logprobs += [0.0] * len(tokens)

    def trace(self) -> TokenTrace | None:
        return self._trace if self._trace.prompt else None

    def close(self) -> None:
        """Nothing to close."""


def _illegal_values(spec: ActionSpec, turn: Turn) -> list[Any]:
    """Values that the schema allows and the observation does not."""
    legal = turn.observation.get(spec.choices or "")
    if not isinstance(legal, list):
        return []
    schema: Mapping[str, Any] = turn.action_schema.get("properties", {}).get(spec.field or "", {})
    possible = schema.get("enum")
    if possible is None and {"minimum", "maximum"} <= schema.keys():
        possible = list(range(int(schema["minimum"]), int(schema["maximum"]) + 1))[:1000]
    return [value for value in possible or [] if value not in legal]


def _unreadable(spec: ActionSpec, reply: str, chance: random.Random) -> str:
    """The reply with a part missing or doubled."""
    if spec.format == "tag":
        begin, end = f"<{spec.tag}>", f"</{spec.tag}>"
        value = reply.removeprefix(begin).removesuffix(end)
        return chance.choice(["", begin, end, value, begin + value, value + end, begin + reply, begin + end])
    return "" if spec.format == "text" else reply[: chance.randrange(len(reply) or 1)]
