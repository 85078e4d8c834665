"""`openenv.yaml` with its `proctor:` block: the whole of what an environment says about itself.

Reading never guesses: an unknown key, a wrong type or a template that cannot render is a problem with its line.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, field_validator, model_validator

from backend.domain.templates import template_problem
from backend.domain.tools import MAX_TOOLS, Tool

PLATFORM_COLUMNS = ("format", "length")
"""Columns that the platform computes; every other one comes from the environment."""

MAX_NODES = 50_000
"""Values in a manifest, aliases written out."""

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a manifest, and where."""

    message: str
    path: str = ""
    """Dotted, e.g. `proctor.rewards.win`."""
    line: int = 1
    """1-based."""


class ManifestInvalid(ValueError):
    """The manifest cannot be used."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"line {p.line}: {p.path + ': ' if p.path else ''}{p.message}" for p in problems))


class OverEpisode(StrEnum):
    """How a column's step values become its episode value."""

    SUM = "sum"
    LAST = "last"
    MAX = "max"


class _Block(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RewardColumn(_Block):
    """One named, weighted component of the reward."""

    name: Name
    weight: float = Field(allow_inf_nan=False)
    over_episode: OverEpisode = OverEpisode.SUM
    range: tuple[float, float] | None = None
    """Lowest and highest episode value, where the author declares it."""


_Tools = Annotated[
    Annotated[list[Tool], Tag("<list>"), Field(min_length=1, max_length=MAX_TOOLS)] | Annotated[str, Tag("<field>")],
    Discriminator(lambda value: "<field>" if isinstance(value, str) else "<list>"),
]


class ActionSpec(_Block):
    """How a reply becomes an action."""

    format: Literal["tag", "json", "text", "tool"] = "text"
    tag: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,30}$")] | None = None
    field: str | None = None
    """The action's field that takes the text, or the tool's name; json fills all fields itself."""
    type: Literal["string", "integer", "number"] = "string"
    choices: str | None = None
    """The observation's field that lists the values that are legal now (used by the random-legal baseline).
    With tools: calls, each `{name, arguments}`."""
    arguments: str = "arguments"
    """tool: the action's field that takes the call's arguments."""
    tools: _Tools | None = None
    """tool: what may be called, or the observation's field that lists it."""
    text: str | None = None
    """tool: the action's field that takes a reply without any call. Without it, such a reply cannot be read."""
    extra: dict[str, Any] = Field(default={}, max_length=16)
    """tool: constant fields of every action, e.g. `{type: call_tool}`."""
    discover: dict[str, Any] | None = None
    """tool: an action sent once after the reset, because its answer (and no other) lists the tools."""

    @model_validator(mode="after")
    def _complete(self) -> "ActionSpec":
        if self.format == "tag" and not self.tag:
            raise ValueError("format `tag` needs the name of the tag: `tag: move`")
        if self.format in {"tag", "text"} and not self.field:
            raise ValueError(f"format `{self.format}` needs `field`: the action's field that takes the text")
        if self.format == "tool":
            self._complete_tool()
        elif only_tool := [name for name in ("tools", "text", "extra", "discover") if getattr(self, name)]:
            raise ValueError(f"`{only_tool[0]}` belongs to format `tool`")
        return self

    def _complete_tool(self) -> None:
        if not self.field:
            raise ValueError("format `tool` needs `field`: the action's field that takes the tool's name")
        if not self.tools:
            raise ValueError("format `tool` needs `tools`: a list, or the observation's field that lists them")
        filled = [self.field, self.arguments, *([self.text] if self.text else []), *self.extra]
        if len(set(filled)) < len(filled):
            raise ValueError("`field`, `arguments`, `text` and `extra` must name different fields")
        if len(set(self.tool_names)) < len(self.tool_names):
            raise ValueError("two tools have the same name")
        if self.discover and not isinstance(self.tools, str):
            raise ValueError("`discover` is for tools that an observation lists: `tools: <field>`")

    @property
    def tool_names(self) -> list[str]:
        """Of the tools that the manifest itself lists."""
        return [tool.name for tool in self.tools] if isinstance(self.tools, list) else []

    @property
    def filled_fields(self) -> set[str] | None:
        """The action's fields that a reply may fill; None means all of them."""
        if self.format == "json":
            return None
        names = {self.field, self.arguments, self.text, *self.extra} if self.format == "tool" else {self.field}
        return {name for name in names if name}


class ContextSpec(_Block):
    """How much of a conversation the policy reads at each turn."""

    kind: Literal["full", "last"] = "full"
    """last: the system prompt, the first turn, and the last `turns` turns. What lies between is left out."""
    turns: int = Field(default=4, ge=1, le=1000)
    """last: an observation and the reply to it are a turn; the observation to be answered now counts."""

    def cuts(self, max_turns: int) -> bool:
        """Can an episode of so many turns be longer than what is read?"""
        return self.kind == "last" and max_turns > self.turns + 1


class AgentSpec(_Block):
    """How text becomes an action and an observation becomes text."""

    system: str = ""
    """Where it says `{{ tools }}`, the tools are listed; else they follow it."""
    observation: str = "{{ observation }}"
    """Sandboxed Jinja over the observation's fields; `observation` is the whole."""
    action: ActionSpec
    on_unparsable: Literal["retry", "end", "pass"] = "retry"
    """retry: tell the policy, costs a turn. end: the episode is over. pass: hand the raw text to the environment."""
    unparsable_message: str = "Your reply could not be read. {{ problem }}"
    context: ContextSpec = ContextSpec()
    reasoning: Literal["inline", "think"] = "inline"
    """think: what a reply says up to `</think>` is reasoning, kept apart from the answer. inline: it is all answer.
    What an endpoint tells as reasoning in a field of its own is apart in both."""

    @model_validator(mode="after")
    def _can_pass(self) -> "AgentSpec":
        if self.on_unparsable == "pass" and self.action.format == "tool":
            raise ValueError(
                "`on_unparsable: pass` has nowhere to put the text of a tool call; give `action.text` instead"
            )
        return self

    @field_validator("observation", "unparsable_message")
    @classmethod
    def _renders(cls, text: str) -> str:
        if problem := template_problem(text):
            raise ValueError(problem)
        return text


class EpisodeSpec(_Block):
    """Limits of one episode."""

    max_turns: int = Field(default=8, ge=1, le=1000)
    step_timeout_seconds: float = Field(default=10.0, gt=0, le=3600)
    episode_timeout_seconds: float = Field(default=120.0, gt=0, le=86400)
    max_tokens_per_turn: int = Field(default=256, ge=1, le=131072)


class TasksSpec(_Block):
    """How many tasks there are. Task i of a split has level i mod levels."""

    train: int = Field(default=1000, ge=1, le=100_000_000)
    heldout: int = Field(default=200, ge=1, le=10_000_000)
    levels: int = Field(default=1, ge=1, le=100)


class NetworkSpec(_Block):
    """Where an env server wants to connect to; an administrator has to grant it."""

    hosts: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9.*-]{1,253}(:[0-9]{1,5})?$")]] = Field(
        min_length=1, max_length=32
    )


class ResourcesSpec(_Block):
    """What one env server may use."""

    memory_mb: int = Field(default=512, ge=64, le=65536)
    cpus: float = Field(default=1.0, gt=0, le=64)
    network: Literal["none"] | NetworkSpec = "none"
    sessions: int = Field(default=64, ge=1, le=4096)
    """Concurrent episodes that one server bears."""
    execute: bool = False
    """May it run code that a policy wrote, by `proctor_sandbox.execute()`?"""
    remote: Annotated[str, Field(pattern=r"^(https?://[^\s]{1,500})?$")] = ""
    """The address of a server that somebody else runs; empty: the package is run here."""

    @property
    def needs_grant(self) -> bool:
        """Only an administrator lets a server out of its network of nothing."""
        return self.network != "none"


class ChecksSpec(_Block):
    """What the certificate holds the reward to."""

    gold_minimum: float | list[float] | None = None
    """Mean reward that the gold policy must reach, per level when a list. Default: the highest possible reward."""
    floor_maximum: float | None = None
    """Mean reward of chance: what a policy that does not try may get. Default: the lowest reward and the format's
    part. The check allows a twentieth of the reward's range above it."""
    reference: Name | None = None
    """The script whose play should succeed sometimes. Default: `teacher`, else `gold`."""
    answer_in_prompt: bool = False
    """The answer stands in the prompt by design: multiple choice, extraction."""
    noise: float = Field(default=0.0, ge=0, le=0.5, allow_inf_nan=False)
    """How far a measured column may lie from its value in an equal episode; 0 where nothing is measured."""


class ProctorSpec(_Block):
    """The `proctor:` block: what OpenEnv does not say."""

    agent: AgentSpec
    rewards: list[RewardColumn] = Field(min_length=1, max_length=32)
    columns_from: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*){0,5}$")] | None = None
    """Where an observation has the columns when not in `metadata.rewards`: `metadata.parts`, `breakdown.scores`."""
    episode: EpisodeSpec = EpisodeSpec()
    tasks: TasksSpec = TasksSpec()
    resources: ResourcesSpec = ResourcesSpec()
    scripts: list[Name] = Field(default=[], max_length=16)
    """Scripted policies that the environment's state offers under `scripts` ({name: reply text}), e.g. `gold`."""
    checks: ChecksSpec = ChecksSpec()

    @field_validator("rewards", mode="before")
    @classmethod
    def _columns(cls, value: Any) -> Any:
        """`win: 1.0` or `win: {weight: 1.0, over_episode: max}` by name, in the order written."""
        if not isinstance(value, dict):
            return value
        return [
            {"name": name, **(spec if isinstance(spec, dict) else {"weight": spec})} for name, spec in value.items()
        ]

    @field_validator("rewards")
    @classmethod
    def _unique(cls, columns: list[RewardColumn]) -> list[RewardColumn]:
        names = [column.name for column in columns]
        if "reward" in names and len(names) > 1:
            raise ValueError("a column may not be named `reward` beside others: that is their weighted sum")
        return columns


class Manifest(BaseModel):
    """A whole `openenv.yaml`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    spec_version: int = 1
    name: Name
    version: str | None = None
    description: str = ""
    author: str | None = None
    type: str = "space"
    runtime: str = "fastapi"
    app: str = "server.app:app"
    port: int = 8000
    variables: dict[str, Any] | None = None
    discovery: dict[str, Any] | None = None
    validation: dict[str, Any] | None = None
    proctor: ProctorSpec

    @property
    def columns(self) -> list[RewardColumn]:
        return self.proctor.rewards

    @property
    def column_names(self) -> list[str]:
        return [column.name for column in self.proctor.rewards]


def read_manifest(text: str) -> Manifest:
    """Parse and validate; raises ManifestInvalid with every problem and its line."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        raw = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ManifestInvalid([Problem(f"not YAML: {error.problem}", line=mark.line + 1 if mark else 1)]) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ManifestInvalid([Problem(f"not YAML: {error}")]) from error
    if node is not None and _unfolded(node, {}) > MAX_NODES:
        raise ManifestInvalid([Problem("its aliases unfold to too much, or without end")])
    if not isinstance(raw, dict):
        raise ManifestInvalid([Problem("a manifest is a mapping: `name: my_environment` and so on")])
    try:
        return Manifest.model_validate(raw)
    except ValidationError as error:
        problems = [_problem(node, details) for details in error.errors(include_url=False)]
        raise ManifestInvalid(problems) from error


def _unfolded(node: yaml.Node, sizes: dict[int, float]) -> float:
    """How many nodes there are once aliases are written out; infinite when one holds itself."""
    if id(node) not in sizes:
        sizes[id(node)] = math.inf
        children = node.value if isinstance(node, yaml.CollectionNode) else []
        parts = [part for child in children for part in (child if isinstance(child, tuple) else (child,))]
        sizes[id(node)] = 1 + sum(_unfolded(part, sizes) for part in parts)
    return sizes[id(node)]


def _problem(node: yaml.Node | None, details: Any) -> Problem:
    path = [part for part in details["loc"] if isinstance(part, int) or not str(part).startswith("<")]
    path += details.get("ctx", {}).get("path", [])
    kind = details["type"]
    if kind == "extra_forbidden":
        message = "unknown key"
    elif kind == "missing":
        message = "missing"
    else:
        message = details["msg"].removeprefix("Value error, ")
    return Problem(message, _dotted(node, path), _line(node, path))


def _dotted(node: yaml.Node | None, path: list[str | int]) -> str:
    """The path in the author's words: a reward column by its name, not by its number."""
    words = []
    for part in path:
        step = _child(node, part)
        key, node = step or (None, None)
        words.append(str(key.value if isinstance(key, yaml.ScalarNode) and isinstance(part, int) else part))
    return ".".join(words)


def line_of(text: str, *path: str | int) -> int:
    """The line on which a manifest that can be parsed says this."""
    return _line(yaml.compose(text, Loader=yaml.SafeLoader), list(path))


def _line(node: yaml.Node | None, path: list[str | int]) -> int:
    """The line of the deepest node that the path reaches."""
    line = 1
    for part in path:
        step = _child(node, part)
        if step is None:
            break
        key, node = step
        line = key.start_mark.line + 1
    return line


def _child(node: yaml.Node | None, part: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        for position, (key, value) in enumerate(node.value):
            if key.value == part or position == part:
                return key, value
    elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part]
    return None
