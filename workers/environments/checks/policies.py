"""The policies that test an environment: transcripts, modified scripts, and many policies that do not try."""

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from statistics import mode

from backend.domain.environments.answers import INJECTION
from backend.domain.environments.manifest import ActionSpec
from backend.domain.environments.prompts import parse_reply, write_reply
from workers.policies.base import EpisodeStart, Player, Policy, Reply, Turn
from workers.policies.scripted import ScriptedPolicy

CHARACTERS_PER_TOKEN = 4
LISTED_ANSWERS = 50

SCRIPTS = ("gold", "teacher", "partial", "wrong", *(f"variant_{number}" for number in range(1, 10)))
"""Names of scripts in an environment's state that have a meaning to checks."""


class ReplyPlayer(Player):
    """Plays one episode with a policy's reply function. It has no tokens, so words are counted."""

    def __init__(self, start: EpisodeStart, policy: "ReplyPolicy", scripts: Mapping[str, Player]) -> None:
        self.spec = start.manifest.proctor.agent.action
        self.max_turns = start.manifest.proctor.episode.max_turns
        self.random = random.Random(f"errs:{start.seed}")
        self.task, self.member = start.task, start.member
        self.replies: list[str] = []
        self.wants_scripts = any(player.wants_scripts for player in scripts.values())
        self._policy, self._scripts = policy, scripts

    async def script(self, name: str, turn: Turn) -> str:
        return (await self._scripts[name].act(turn)).text

    async def act(self, turn: Turn) -> Reply:
        reply = self._policy.reply(self, turn)
        text = self._policy.change(reply if isinstance(reply, str) else await reply)
        self.replies.append(text)
        return Reply(text, tokens_out=len(text.split()))


ReplyFunction = Callable[[ReplyPlayer, Turn], str | Awaitable[str]]


class ReplyPolicy(Policy):
    """A policy defined by one function. `scripts` names the scripted policies that the function can call."""

    def __init__(self, reply: ReplyFunction, *scripts: str, change: Callable[[str], str] = str) -> None:
        self.reply, self.change, self._scripts = reply, change, scripts

    async def begin(self, start: EpisodeStart) -> Player:
        scripts = {name: await ScriptedPolicy(name).begin(start) for name in self._scripts}
        return ReplyPlayer(start, self, scripts)


def says(text: str | Callable[[Turn], str]) -> Policy:
    """Return a policy that replies with this text as it is."""
    return ReplyPolicy(lambda player, turn: text if isinstance(text, str) else text(turn))


def writes(text: str | Callable[[Turn], str]) -> Policy:
    """Return a policy that puts this text into the right format."""
    return ReplyPolicy(lambda player, turn: in_format(player.spec, text if isinstance(text, str) else text(turn), turn))


def recites(replies: Sequence[str]) -> Policy:
    """Return a policy that plays a transcript, reply by reply."""
    return says(lambda turn: replies[turn.index] if turn.index < len(replies) else "")


def errs(script: str, share: float) -> Policy:
    """Return a policy that mixes random legal replies into a script, like a half-trained model."""
    return ReplyPolicy(
        lambda player, turn: player.script("random" if player.random.random() < share else script, turn),
        *(script, "random"),
    )


def in_format(spec: ActionSpec, text: str, turn: Turn) -> str:
    """Put a text where the answer belongs: in the tag, in every text of the JSON object, in a call's arguments."""
    if spec.format not in {"json", "tool"}:
        return write_reply(spec, {spec.field or "text": text})
    if spec.format == "tool" and not turn.tools:
        return write_reply(spec, {spec.field or "name": "answer", spec.arguments: {"text": text}})
    properties = (turn.action_schema if spec.format == "json" else turn.tools[-1].parameters).get("properties", {})
    texts = {name: text for name, inner in properties.items() if name != "metadata" and inner.get("type") == "string"}
    if spec.format == "json":
        return write_reply(spec, texts)
    return write_reply(spec, {spec.field or "name": turn.tools[-1].name, spec.arguments: texts})


def _lists_answers(gold: Sequence[str]) -> Policy:
    """Return a policy that lists every answer that was ever right; if none is known, all legal choices."""
    right: list[str] | None = None

    def reply(player: ReplyPlayer, turn: Turn) -> str:
        nonlocal right
        spec = player.spec
        if right is None:  # once: there may be thousands of turns
            actions = [parse_reply(spec, text).action or {} for text in gold]
            fields = [action.get(spec.arguments, {}) if spec.format == "tool" else action for action in actions]
            values = (value for each in fields for value in each.values() if isinstance(value, str | int | float))
            right = list(dict.fromkeys(map(str, values)))[:LISTED_ANSWERS]
        legal = turn.observation.get(spec.choices) if spec.choices else None
        options = right or legal
        options = options if isinstance(options, list) else range(1, LISTED_ANSWERS)
        return in_format(spec, ", ".join(str(option) for option in options), turn)

    return ReplyPolicy(reply)


def _prompt(turn: Turn) -> str:
    """Return the instructions and the newest observation. Echoing more would double the prompt with every turn."""
    system = [str(message["content"]) for message in turn.messages if message["role"] == "system"]
    return "\n\n".join([*system, turn.text])


DEGENERATE: dict[str, Callable[[Sequence[str]], Policy]] = {
    "random": lambda gold: ScriptedPolicy("random"),
    "empty": lambda gold: says(""),
    "whitespace": lambda gold: says(" \n\t \u00a0\n"),
    # guesses without reading the task: the most common first reply of perfect play
    "constant": lambda gold: says(mode(gold)) if gold else ScriptedPolicy("constant"),
    "echo_prompt": lambda gold: says(_prompt),
    "echo_observation": lambda gold: writes(lambda turn: turn.text),
    "repeat_last": lambda gold: ReplyPolicy(
        lambda player, turn: player.replies[0] if player.replies else player.script("random", turn), "random"
    ),
    "longest": lambda gold: writes(lambda turn: ("the answer is " * 2000)[: CHARACTERS_PER_TOKEN * turn.max_tokens]),
    "format_only": lambda gold: writes(""),
    "refusal": lambda gold: writes("I am sorry, but I cannot help with that."),
    "answer_list": _lists_answers,
    "injection": lambda gold: writes(INJECTION),
    # one legal action: finds rewards that are kept after leaving early
    "early_exit": lambda gold: ReplyPolicy(
        lambda player, turn: "I stop here." if turn.index else player.script("random", turn), "random"
    ),
}
"""Policies that do not try, built from gold's first replies on many tasks (empty without a gold script)."""

IDLE = ("empty", "whitespace", "format_only", "refusal", "injection")
"""Policies that cannot have learned anything about the task."""

ORDER = (
    *(*SCRIPTS, *DEGENERATE, "erring", "rewritten", "fixtures", "chosen", "judged", "canary", "repeated"),
    *("forms", "variants", "intrusive", "equal", "costly"),
)
"""All policies of a certificate. The order numbers the groups of stored rollouts: append new ones at the end."""
