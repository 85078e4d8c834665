"""Scripted play as training examples: the scripted policy's replies are learned, deliberate mistakes are not."""

import random

from backend.domain.environments.manifest import ActionSpec
from backend.domain.environments.prompts import write_reply
from backend.domain.errors import PolicyError
from workers.models.chat import ChatTokens
from workers.policies.base import EpisodeStart, Reply, TokenTrace, Turn

MOST_SPOILED = 2
ILLEGAL_SHARE = 0.5
"""Share of illegal actions among invalid attempts, if the environment lists legal ones. The others cannot be parsed."""


class ScriptIsSilent(PolicyError):
    """The environment's state offers no reply of the scripted policy."""

    is_retryable = False


class Teacher:
    """A scripted policy that, with probability `noise`, first tries a reply that will be rejected.

    The mask of its token trace is 1 for the scripted replies only: the loss of the warm-up.
    """

    def __init__(self, script: str, chat: ChatTokens, *, noise: float = 0.0) -> None:
        self.script, self.chat, self.noise = script, chat, noise

    async def begin(self, start: EpisodeStart) -> "TeacherPlayer":
        return TeacherPlayer(self, start)

    async def aclose(self) -> None:
        """Nothing to close."""


class TeacherPlayer:
    wants_scripts = True

    def __init__(self, teacher: Teacher, start: EpisodeStart) -> None:
        self._teacher, self._manifest = teacher, start.manifest
        self._chance = random.Random(start.seed)
        self._spoiled = 0
        self._read = 0
        self._trace = TokenTrace([], [], [], [])

    async def act(self, turn: Turn) -> Reply:
        chat, reply = self._teacher.chat, turn.scripts.get(self._teacher.script)
        if reply is None:
            raise ScriptIsSilent(f"the environment's state offers no reply under scripts.{self._teacher.script}")
        if not self._trace.prompt:
            self._trace.prompt = list(chat.opening(turn.messages))
        else:
            self._append(chat.continuation(turn.messages[self._read :]), 0)
        self._read = len(turn.messages) + 1
        attempt = self._invalid_attempt(reply, turn)
        tokens = chat.reply(reply if attempt is None else attempt)
        self._append(tokens, 1 if attempt is None else 0)
        return Reply(reply if attempt is None else attempt, tokens_out=len(tokens))

    def _invalid_attempt(self, reply: str, turn: Turn) -> str | None:
        """Return a reply that will be rejected, or None to play the scripted one."""
        turns_left = self._manifest.proctor.episode.max_turns - turn.index
        spec, chance = self._manifest.proctor.agent.action, self._chance
        if chance.random() >= self._teacher.noise or self._spoiled >= MOST_SPOILED:
            return None
        if self._manifest.proctor.agent.on_unparsable != "retry" or turns_left <= MOST_SPOILED:
            return None
        self._spoiled += 1
        illegal = _illegal_values(spec, turn)
        if illegal and chance.random() < ILLEGAL_SHARE:
            return write_reply(spec, {spec.field or "": chance.choice(illegal)})
        if spec.format == "tag":  # a part is missing or doubled
            begin, end = f"<{spec.tag}>", f"</{spec.tag}>"
            value = reply.removeprefix(begin).removesuffix(end)
            return chance.choice(["", begin, end, value, begin + value, value + end, begin + reply, begin + end])
        return "" if spec.format == "text" else reply[: chance.randrange(len(reply) or 1)]

    def _append(self, tokens: list[int], mask: int) -> None:
        self._trace.completion.extend(tokens)
        self._trace.mask += [mask] * len(tokens)
        self._trace.logprobs += [0.0] * len(tokens)

    def trace(self) -> TokenTrace | None:
        return self._trace if self._trace.prompt else None

    def close(self) -> None:
        """Nothing to close."""


def _illegal_values(spec: ActionSpec, turn: Turn) -> list[object]:
    """Return values that the schema allows and the observation does not list as legal."""
    legal = turn.observation.get(spec.choices or "")
    if not isinstance(legal, list):
        return []
    schema = turn.action_schema.get("properties", {}).get(spec.field or "", {})
    possible = schema.get("enum")
    if possible is None and {"minimum", "maximum"} <= schema.keys():
        possible = list(range(int(schema["minimum"]), int(schema["maximum"]) + 1))[:1000]
    return [value for value in possible or [] if value not in legal]
