"""`openenv.yaml` with its `proctor:` block: everything that an environment declares.

Reading never guesses: an unknown key, a wrong type or a template that cannot render is a problem with its line.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

import yaml
from pydantic import (
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from backend.domain.environments.blocks import READING, ManifestBlock, checked_template
from backend.domain.environments.packages import MANIFEST_PATH
from backend.domain.environments.tools import MAX_TOOLS, Tool
from backend.domain.environments.view_specs import MAX_VIEWS, ViewSpec
from backend.domain.text import JsonObject
from backend.domain.yaml_text import YamlInvalid, compose_yaml, construct

PLATFORM_COLUMNS = ("format", "length")
"""Columns that Proctor computes; all others come from the environment."""
MAX_SEATS = 8

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]


_Tools = Annotated[
    Annotated[list[Tool], Tag("<list>"), Field(min_length=1, max_length=MAX_TOOLS)] | Annotated[str, Tag("<field>")],
    Discriminator(lambda value: "<field>" if isinstance(value, str) else "<list>"),
]


_Views = Annotated[
    Annotated[list[ViewSpec], Tag("<list>"), Field(min_length=1, max_length=MAX_VIEWS)]
    | Annotated[ViewSpec, Tag("<one>")],
    Discriminator(lambda value: "<list>" if isinstance(value, list) else "<one>"),
]


class ActionSpec(ManifestBlock):
    """How a reply becomes an action."""

    format: Literal["tag", "json", "text", "tool"] = "text"
    tag: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,30}$")] | None = None
    field: str | None = None
    """The action's field for the text, or for the tool's name; json fills all fields."""
    type: Literal["string", "integer", "number"] = "string"
    choices: str | None = None
    """The observation's field that lists the values that are legal now (used by random legal play).
    With tools: calls, each `{name, arguments}`."""
    arguments: str = "arguments"
    """tool: the action's field for the call's arguments."""
    tools: _Tools | None = None
    """tool: the tools, or the observation's field that lists them."""
    text: str | None = None
    """tool: the action's field for a reply without a call. Default: such a reply cannot be parsed."""
    extra: JsonObject = Field(default={}, max_length=16)
    """tool: constant fields of every action, e.g. `{type: call_tool}`."""
    discover: JsonObject | None = None
    """tool: an action sent once after the reset, if only the response to it lists the tools."""

    @model_validator(mode="after")
    def _complete(self) -> "ActionSpec":
        if self.format == "tag" and not self.tag:
            raise ValueError("format `tag` needs the name of the tag: `tag: move`")
        if self.format in {"tag", "text"} and not self.field:
            raise ValueError(f"format `{self.format}` needs `field`: the action's field that takes the text")
        if self.format != "tool":
            if only_tool := [name for name in ("tools", "text", "extra", "discover") if getattr(self, name)]:
                raise ValueError(f"`{only_tool[0]}` belongs to format `tool`")
            return self
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
        return self

    @property
    def tool_names(self) -> list[str]:
        return [tool.name for tool in self.tools] if isinstance(self.tools, list) else []

    @property
    def filled_fields(self) -> set[str] | None:
        """The action's fields that a reply can fill; None means all of them."""
        if self.format == "json":
            return None
        names = {self.field, self.arguments, self.text, *self.extra} if self.format == "tool" else {self.field}
        return {name for name in names if name}


class ContextSpec(ManifestBlock):
    """How much of a conversation the policy reads at each turn."""

    kind: Literal["full", "last"] = "full"
    """last: the system prompt, the first turn, and the last `turns` turns. Turns between them are omitted."""
    turns: int = Field(default=4, ge=1, le=1000)
    """last: a turn is an observation and its reply; the current observation counts."""

    def cuts(self, max_turns: int) -> bool:
        """Return whether an episode with this number of turns can exceed the context."""
        return self.kind == "last" and max_turns > self.turns + 1


class AgentSpec(ManifestBlock):
    """How text becomes an action and an observation becomes text."""

    system: str = ""
    """The tools are listed at `{{ tools }}`, else after the text."""
    observation: str = "{{ observation }}"
    """A template over the observation's fields; `observation` is the whole."""
    action: ActionSpec
    on_unparsable: Literal["retry", "end", "pass"] = "retry"
    """retry: explain it to the policy, which costs a turn. end: end the episode. pass: send the raw text on."""
    unparsable_message: str = "Your reply could not be read. {{ problem }}"
    context: ContextSpec = ContextSpec()
    reasoning: Literal["inline", "think"] = "inline"
    """think: a reply up to `</think>` is reasoning, stored separately from the answer. inline: it is all answer.
    Reasoning that an endpoint returns in a separate field is stored separately in both cases."""

    @model_validator(mode="after")
    def _can_pass(self) -> "AgentSpec":
        if self.on_unparsable == "pass" and self.action.format == "tool":
            raise ValueError(
                "`on_unparsable: pass` has nowhere to put the text of a tool call; give `action.text` instead"
            )
        return self

    @field_validator("observation", "unparsable_message")
    @classmethod
    def _renders(cls, text: str, info: ValidationInfo) -> str:
        return checked_template(text, info)


class OverEpisode(StrEnum):
    """How a column's step values become its episode value."""

    SUM = "sum"
    LAST = "last"
    MAX = "max"


class RewardColumn(ManifestBlock):
    """One named, weighted component of the reward."""

    name: Name
    weight: float = Field(allow_inf_nan=False)
    over_episode: OverEpisode = OverEpisode.SUM
    range: tuple[float, float] | None = None
    """Lowest and highest episode value, if declared."""
    form: bool = False
    """It rewards the form of replies on purpose, such as a length or a layout."""


class EpisodeSpec(ManifestBlock):
    """Limits of one episode."""

    max_turns: int = Field(default=8, ge=1, le=1000)
    step_timeout_seconds: float = Field(default=10.0, gt=0, le=3600)
    episode_timeout_seconds: float = Field(default=120.0, gt=0, le=86400)
    max_tokens_per_turn: int = Field(default=256, ge=1, le=131072)


class TasksSpec(ManifestBlock):
    """Number of tasks. Task i of a split has level i mod levels."""

    train: int = Field(default=1000, ge=1, le=100_000_000)
    heldout: int = Field(default=200, ge=1, le=10_000_000)
    levels: int = Field(default=1, ge=1, le=100)
    grouped: bool = False
    """Rewards compare the rollouts of a group: its members are reset together and scored when the last one ends."""
    canaries: float = Field(default=0.0, ge=0, le=0.2, allow_inf_nan=False)
    """Share of tasks in training and evaluations that are reset with `canary: true` and cannot be passed."""


class NetworkSpec(ManifestBlock):
    """Addresses that an env server wants to connect to; an administrator has to grant them."""

    hosts: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9.*-]{1,253}(:[0-9]{1,5})?$")]] = Field(
        min_length=1, max_length=32
    )


class ResourcesSpec(ManifestBlock):
    """Limits of one env server."""

    memory_mb: int = Field(default=512, ge=64, le=65536)
    cpus: float = Field(default=1.0, gt=0, le=64)
    network: Literal["none"] | NetworkSpec = "none"
    sessions: int = Field(default=64, ge=1, le=4096)
    """Maximum number of concurrent episodes per server."""
    execute: bool = False
    """Whether it may run code that a policy wrote, through `proctor_sandbox.execute()`."""
    remote: Annotated[str, Field(pattern=r"^(https?://[^\s]{1,500})?$")] = ""
    """Address of an external server. Default: the package runs here."""


class ChecksSpec(ManifestBlock):
    """Bounds that the certificate checks the reward against."""

    gold_minimum: float | list[float] | None = None
    """Mean reward that the gold policy must reach, per level when a list. Default: the highest possible reward."""
    floor_maximum: float | None = None
    """Mean reward of chance: the most that a policy which does not try may get. Default: the lowest reward plus the
    format's share. The check allows 5% of the reward's range above it."""
    reference: Name | None = None
    """The script whose play should succeed sometimes. Default: `teacher`, else `gold`."""
    answer_in_prompt: bool = False
    """The answer appears in the prompt by design: multiple choice, extraction."""
    free: list[Literal["case", "order", "numbers"]] = Field(default=[], max_length=3)
    """Variations that keep the reward of an answer: letter case, the order of a list, the format of a number."""
    synonyms: dict[str, list[str]] = Field(default={}, max_length=200)
    """Other answers that must earn as much, by right answer."""
    noise: float = Field(default=0.0, ge=0, le=0.5, allow_inf_nan=False)
    """Maximum difference of a measured column between equal episodes; 0 if nothing is measured."""


class SeatsSpec(ManifestBlock):
    """The seats of a game that several policies play in one episode."""

    names: list[Name] = Field(min_length=2, max_length=MAX_SEATS)
    turn: Annotated[str, Field(pattern=r"^[A-Za-z_]\w{0,63}$")] = "seat"
    """The observation's field that names the seat whose turn it is."""
    outcome: Name | None = None
    """The reward column that decides: the seat with the highest value wins. Default: the first column."""
    others: Name = "random"
    """The scripted policy that takes seats to which no policy was assigned."""

    @field_validator("names")
    @classmethod
    def _differ(cls, names: list[str]) -> list[str]:
        if len(set(names)) < len(names):
            raise ValueError("two seats have the same name")
        return names


class ProctorSpec(ManifestBlock):
    """The `proctor:` block: everything that OpenEnv does not define."""

    agent: AgentSpec
    rewards: list[RewardColumn] = Field(min_length=1, max_length=32)
    columns_from: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*){0,5}$")] | None = None
    """Path of the columns in an observation, e.g. `metadata.parts`. Default: `metadata.rewards`."""
    episode: EpisodeSpec = EpisodeSpec()
    tasks: TasksSpec = TasksSpec()
    resources: ResourcesSpec = ResourcesSpec()
    scripts: list[Name] = Field(default=[], max_length=16)
    """Scripted policies that the environment's state offers under `scripts` ({name: reply text}), e.g. `gold`."""
    checks: ChecksSpec = ChecksSpec()
    seats: SeatsSpec | None = None
    """Default: one policy plays the whole episode."""
    view: _Views | None = None
    """How an observation looks on pages. Default: the text that the policy reads."""

    @property
    def views(self) -> list[ViewSpec]:
        return self.view if isinstance(self.view, list) else [self.view] if self.view else []

    @field_validator("rewards", mode="before")
    @classmethod
    def _columns(cls, value: object) -> object:
        """Read `win: 1.0` or `win: {weight: 1.0, over_episode: max}` by name, in the order written."""
        if not isinstance(value, dict):
            return value
        return [
            {"name": name, **(spec if isinstance(spec, dict) else {"weight": spec})} for name, spec in value.items()
        ]

    @field_validator("rewards")
    @classmethod
    def _unambiguous(cls, columns: list[RewardColumn]) -> list[RewardColumn]:
        if len(columns) > 1 and any(column.name == "reward" for column in columns):
            raise ValueError("a column may not be named `reward` if there are others: that is their weighted sum")
        return columns

    @model_validator(mode="after")
    def _can_seat(self) -> "ProctorSpec":
        if self.seats is None:
            return self
        if self.tasks.grouped:
            raise ValueError("`seats` and `tasks.grouped` exclude each other")
        if self.agent.action.discover:
            raise ValueError("`seats` and `agent.action.discover` exclude each other: no seat lists tools for all")
        if self.outcome_column.range is None or self.outcome_column.name in PLATFORM_COLUMNS:
            raise ValueError(
                f"the column `{self.outcome_column.name}` decides who wins (`seats.outcome`), so the environment must "
                "send it and it needs a `range`: a seat that gives up gets the lowest value, the others the highest"
            )
        return self

    @property
    def outcome_column(self) -> RewardColumn:
        """The column that decides who wins an episode with seats."""
        name = self.seats.outcome if self.seats else None
        by_name = {column.name: column for column in self.rewards}
        if name is not None and name not in by_name:
            raise ValueError(f"`seats.outcome` names `{name}`, which is no reward column ({', '.join(by_name)})")
        return by_name[name] if name else self.rewards[0]


class Manifest(ManifestBlock):
    """A whole `openenv.yaml`."""

    spec_version: int = 1
    name: Name
    version: str | None = None
    description: str = ""
    author: str | None = None
    type: str = "space"
    runtime: str = "fastapi"
    app: str = "server.app:app"
    port: int = 8000
    variables: JsonObject | None = None
    discovery: JsonObject | None = None
    validation: JsonObject | None = None
    proctor: ProctorSpec

    @property
    def columns(self) -> list[RewardColumn]:
        return self.proctor.rewards

    @property
    def column_names(self) -> list[str]:
        return [column.name for column in self.columns]

    def with_reply_limit(self, tokens: int) -> "Manifest":
        """The same environment with replies of at most `tokens` tokens."""
        return self._with_episode(max_tokens_per_turn=tokens)

    def with_max_turns(self, turns: int) -> "Manifest":
        """The same environment with episodes of at most `turns` turns."""
        return self._with_episode(max_turns=turns)

    def _with_episode(self, **limits: int) -> "Manifest":
        episode = self.proctor.episode.model_copy(update=limits)
        return self.model_copy(update={"proctor": self.proctor.model_copy(update={"episode": episode})})


@dataclass(frozen=True, slots=True)
class FileProblem:
    path: str
    """The file; empty for the package as a whole."""
    line: int
    """1-based."""
    message: str
    key: str = ""
    """In a manifest: the dotted key, e.g. `proctor.rewards.win`."""

    @property
    def place(self) -> str:
        """The beginning of a message: path and line, if any."""
        return f"{self.path} line {self.line}: " if self.path else ""


class ManifestInvalid(ValueError):
    """The manifest cannot be used."""

    def __init__(self, problems: list[FileProblem]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"line {p.line}: {p.key + ': ' if p.key else ''}{p.message}" for p in problems))


def read_manifest(text: str) -> Manifest:
    """Parse and validate; raises ManifestInvalid with every problem and its line."""
    try:
        node = compose_yaml(text)
        raw = construct(node)
    except YamlInvalid as error:
        raise ManifestInvalid([FileProblem(MANIFEST_PATH, error.line, error.reason)]) from error
    if not isinstance(raw, dict):
        problem = FileProblem(MANIFEST_PATH, 1, "a manifest is a mapping: `name: my_environment` and so on")
        raise ManifestInvalid([problem])
    try:
        return Manifest.model_validate(raw, context=READING)
    except ValidationError as error:
        problems = []
        for details in error.errors(include_url=False):
            path = [part for part in details["loc"] if isinstance(part, int) or not str(part).startswith("<")]
            context = details.get("ctx", {})
            line, words, at = _follow(node, path + context.get("path", []))
            if details["type"] == "template" and isinstance(at, yaml.ScalarNode) and at.style == "|":
                line += context["line"]  # the text of a block starts on the next line
            message = {"extra_forbidden": "unknown key", "missing": "missing"}.get(details["type"])
            message = message or details["msg"].removeprefix("Value error, ")
            problems.append(FileProblem(MANIFEST_PATH, line, message, ".".join(words)))
        raise ManifestInvalid(problems) from error


def line_of(text: str, *path: str | int) -> int:
    """Return the line of a valid manifest that declares this path."""
    return _follow(compose_yaml(text), list(path))[0]


def _follow(node: yaml.Node | None, path: list[str | int]) -> tuple[int, list[str], yaml.Node | None]:
    """Return the line of the deepest node on the path, the path by name, and the node at its end."""
    line, words = 1, []
    for part in path:
        key: yaml.Node | None = None
        if isinstance(node, yaml.MappingNode):
            pairs = (pair for at, pair in enumerate(node.value) if part in (at, pair[0].value))
            key, node = next(pairs, (None, None))
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            key = node = node.value[part]
        else:
            node = None
        if key is not None:
            line = key.start_mark.line + 1
        words.append(str(key.value if isinstance(key, yaml.ScalarNode) and isinstance(part, int) else part))
    return line, words, node
