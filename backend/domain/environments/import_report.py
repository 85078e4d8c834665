"""The import report: facts about a foreign package, measured by starting and playing it."""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from backend.domain.text import JsonObject


class SeedEffect(StrEnum):
    """The effect of the seed on how episodes begin."""

    HONOURED = "honoured"
    """The same seed gives the same beginning, another seed a different one."""
    FIXED = "fixed"
    """Every episode begins alike, whatever the seed."""
    IGNORED = "ignored"
    """The same seed gives different beginnings."""
    UNKNOWN = "unknown"


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore")


class SkippedFile(_Part):
    """A file that is not imported, and why."""

    path: str
    size: int
    why: str


class Breakdown(_Part):
    """A dictionary of numbers in the observation that may hold the reward's parts."""

    path: str
    """`metadata.components` or `breakdown.scores`: its path in an observation."""
    names: list[str]
    adds_up: bool
    """Its values added up to the reward wherever it was seen."""


class Leak(_Part):
    """A field that gives the answer away."""

    where: str
    """`state.expected_answer`, `observation.solution`"""
    what: str
    in_observation: bool = False
    """Whether the policy would read it. Fields of the state are invisible to policies."""


class Played(_Part):
    episodes: int = 0
    steps: int = 0
    longest: int = 0
    ended: int = 0
    """Episodes that returned `done`."""
    reset_milliseconds: float = 0.0
    step_milliseconds: float = 0.0
    """Median."""
    reward_lowest: float | None = None
    reward_highest: float | None = None
    without_reward: int = 0
    """Steps whose reward was null."""
    errors: list[str] = Field(default_factory=list)
    """Distinct errors and refusals of the environment."""
    refused: int = 0


class ImportReport(_Part):
    """The whole report. `starts` is false if the package cannot be played."""

    kind: str = "openenv"
    notes: list[str] = Field(default_factory=list)
    carried: list[str] = Field(default_factory=list)
    left_out: list[SkippedFile] = Field(default_factory=list)
    starts: bool = False
    why_not: str = ""
    """The last lines of its log, if it does not start or reset."""
    start_seconds: float = 0.0
    own_environment: bool = False
    """It has a separate virtual environment."""
    sessions: int = 1
    seed: SeedEffect = SeedEffect.UNKNOWN
    index_matters: bool | None = None
    """Whether other task numbers with the same seed begin differently."""
    played: Played = Played()
    columns: list[str] = Field(default_factory=list)
    """Names in `metadata.rewards`, if it sends them."""
    breakdowns: list[Breakdown] = Field(default_factory=list)
    leaks: list[Leak] = Field(default_factory=list)
    state_fields: list[str] = Field(default_factory=list)
    action_schema: JsonObject = Field(default_factory=dict)
    observation_schema: JsonObject = Field(default_factory=dict)
    opening: JsonObject = Field(default_factory=dict)
    """An observation after a reset."""
    after_step: JsonObject = Field(default_factory=dict)
    """An observation after a step."""
    tools: list[JsonObject] = Field(default_factory=list)
    """Tools that an MCP-style package lists."""
    adapter: JsonObject = Field(default_factory=dict)
    """Description from the adapter of another library."""
    name: str = ""
    description: str = ""
