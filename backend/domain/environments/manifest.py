"""`openenv.yaml` with its `proctor:` block: everything that an environment declares.

Reading never guesses: an unknown key, a wrong type or a template that cannot render is a problem with its line.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from backend.domain.environments.agent_spec import READING, ActionSpec, AgentSpec, Block, ContextSpec
from backend.domain.environments.manifest_lines import ManifestInvalid, Problem, line_of, problem_of
from backend.domain.yaml_text import YamlInvalid, compose_yaml, construct

__all__ = [
    "PLATFORM_COLUMNS",
    "ActionSpec",
    "AgentSpec",
    "ChecksSpec",
    "ContextSpec",
    "EpisodeSpec",
    "Manifest",
    "ManifestInvalid",
    "Name",
    "NetworkSpec",
    "OverEpisode",
    "Problem",
    "ProctorSpec",
    "ResourcesSpec",
    "RewardColumn",
    "TasksSpec",
    "line_of",
    "read_manifest",
]

PLATFORM_COLUMNS = ("format", "length")
"""Columns that the platform computes; every other one comes from the environment."""

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]


class OverEpisode(StrEnum):
    """How a column's step values become its episode value."""

    SUM = "sum"
    LAST = "last"
    MAX = "max"


class RewardColumn(Block):
    """One named, weighted component of the reward."""

    name: Name
    weight: float = Field(allow_inf_nan=False)
    over_episode: OverEpisode = OverEpisode.SUM
    range: tuple[float, float] | None = None
    """Lowest and highest episode value, where the author declares it."""


class EpisodeSpec(Block):
    """Limits of one episode."""

    max_turns: int = Field(default=8, ge=1, le=1000)
    step_timeout_seconds: float = Field(default=10.0, gt=0, le=3600)
    episode_timeout_seconds: float = Field(default=120.0, gt=0, le=86400)
    max_tokens_per_turn: int = Field(default=256, ge=1, le=131072)


class TasksSpec(Block):
    """How many tasks there are. Task i of a split has level i mod levels."""

    train: int = Field(default=1000, ge=1, le=100_000_000)
    heldout: int = Field(default=200, ge=1, le=10_000_000)
    levels: int = Field(default=1, ge=1, le=100)
    grouped: bool = False
    """Rewards compare the rollouts of a group: its members are reset together and scored when the last one ends."""
    canaries: float = Field(default=0.0, ge=0, le=0.2, allow_inf_nan=False)
    """Share of the tasks of training and evaluations that are reset with `canary: true` and cannot be passed."""


class NetworkSpec(Block):
    """Where an env server wants to connect to; an administrator has to grant it."""

    hosts: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9.*-]{1,253}(:[0-9]{1,5})?$")]] = Field(
        min_length=1, max_length=32
    )


class ResourcesSpec(Block):
    """What one env server may use."""

    memory_mb: int = Field(default=512, ge=64, le=65536)
    cpus: float = Field(default=1.0, gt=0, le=64)
    network: Literal["none"] | NetworkSpec = "none"
    sessions: int = Field(default=64, ge=1, le=4096)
    """Maximum number of concurrent episodes per server."""
    execute: bool = False
    """May it run code that a policy wrote, by `proctor_sandbox.execute()`?"""
    remote: Annotated[str, Field(pattern=r"^(https?://[^\s]{1,500})?$")] = ""
    """Address of an external server. Default: the package runs here."""

    @property
    def needs_grant(self) -> bool:
        """Only an administrator lets a server out of its network of nothing."""
        return self.network != "none"


class ChecksSpec(Block):
    """Bounds that the certificate checks the reward against."""

    gold_minimum: float | list[float] | None = None
    """Mean reward that the gold policy must reach, per level when a list. Default: the highest possible reward."""
    floor_maximum: float | None = None
    """Mean reward of chance: what a policy that does not try may get. Default: the lowest reward and the format's
    part. The check allows a twentieth of the reward's range above it."""
    reference: Name | None = None
    """The script whose play should succeed sometimes. Default: `teacher`, else `gold`."""
    answer_in_prompt: bool = False
    """The answer appears in the prompt by design: multiple choice, extraction."""
    noise: float = Field(default=0.0, ge=0, le=0.5, allow_inf_nan=False)
    """How far a measured column may lie from its value in an equal episode; 0 where nothing is measured."""


class ProctorSpec(Block):
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
            raise ValueError("a column may not be named `reward` if there are others: that is their weighted sum")
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
        node = compose_yaml(text)
        raw = construct(node)
    except YamlInvalid as error:
        raise ManifestInvalid([Problem(error.reason, line=error.line)]) from error
    if not isinstance(raw, dict):
        raise ManifestInvalid([Problem("a manifest is a mapping: `name: my_environment` and so on")])
    try:
        return Manifest.model_validate(raw, context=READING)
    except ValidationError as error:
        problems = [problem_of(node, details) for details in error.errors(include_url=False)]
        raise ManifestInvalid(problems) from error
