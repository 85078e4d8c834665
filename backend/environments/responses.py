"""The JSON shapes of environments, versions, certificates and hand play."""

import uuid
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field

from backend.domain.environments.manifest import Name
from backend.domain.text import plain_text
from backend.domain.vocabulary import CheckStatus, RolloutStatus, RunStatus, Split, StopReason


class Weighted(BaseModel):
    """One reward column."""

    name: str
    weight: float
    over_episode: str
    range: tuple[float, float] | None


class VersionOut(BaseModel):
    id: uuid.UUID
    environment: str
    number: int
    content_hash: str
    certificate: CheckStatus | None
    """Of the newest certificate; null when it was never checked."""
    notes: str
    published_by: str | None
    published_at: datetime
    columns: list[Weighted]


class VersionDetail(VersionOut):
    manifest: dict[str, Any]
    files: dict[str, str]
    """Text by path."""


class ExportedPackage(BaseModel):
    files: dict[str, str]
    """Text by path."""
    added: list[str]
    """What the version itself does not have, or not in this form."""
    content_hash: str
    """Of the version."""


class EnvironmentOut(BaseModel):
    name: str
    description: str
    is_built_in: bool
    created_at: datetime
    archived_at: datetime | None
    versions: int
    latest: VersionOut | None


class EnvironmentDetail(EnvironmentOut):
    draft_revision: int
    draft_updated_at: datetime
    is_draft_published: bool


MAX_FILES_BODY_BYTES = 32 * 1024**2
"""A package of at most 5 MB whose every character JSON may escape."""


class NewEnvironmentIn(BaseModel):
    """Either a template (or `copy:<environment>`), or the files themselves."""

    name: Name
    template: str | None = None
    files: dict[str, str] | None = None


class FilesIn(BaseModel):
    files: dict[str, str] = Field(description="Text by path.")
    name: str | None = Field(default=None, description="What the environment is called, to compare with its manifest.")


class DraftIn(BaseModel):
    files: dict[str, str] = Field(description="Text by path: all files of the package.")
    revision: int | None = Field(
        default=None, description="The draft's revision that these files began with; null takes it as it is."
    )


Sendable = Annotated[str, AfterValidator(plain_text)]
"""Quotes what was sent, which may hold what an answer cannot."""


class ProblemOut(BaseModel):
    path: Sendable
    line: int
    key: Sendable
    message: Sendable


class ValidationOut(BaseModel):
    is_publishable: bool
    problems: list[ProblemOut]
    columns: list[Weighted]
    content_hash: str


class DraftOut(BaseModel):
    environment: str
    revision: int
    updated_at: datetime
    files: dict[str, str] = Field(description="The complete package, text by path.")
    generated: list[str] = Field(description="Paths of the files that Proctor generates. Send one to replace it.")
    validation: ValidationOut


class PublishIn(BaseModel):
    notes: str = Field(default="", max_length=10_000)
    revision: int | None = Field(default=None, description="The draft's revision that is meant; null: as it is.")
    check: bool = Field(default=True, description="Run the checks of the new version.")
    regrade: bool = Field(
        default=False, description="Grade the environment's history again by the new version's rewards."
    )


class CheckIn(BaseModel):
    policy: str = Field(
        default="",
        max_length=120,
        description="Measure the tasks with this policy too: its name or id, or `<policy id>:<checkpoint id>`.",
    )


class CheckRunOut(BaseModel):
    run_id: uuid.UUID
    status: RunStatus
    version: int
    policy: str | None = None
    """That the tasks are measured with too; null: the package's scripts only."""
    certificate: CheckStatus | None = None


class CertificateOut(BaseModel):
    id: uuid.UUID
    run_id: uuid.UUID
    status: CheckStatus
    created_at: datetime
    content_hash: str
    """Of the version: what the certificate holds for."""
    results: list[dict[str, Any]]
    """`check`, `theme`, `sentence`, `status`, `evidence`, `details`, `seconds`, `episodes`, `rollouts`, `applies`, in
    the order checked."""


class ReplyIn(BaseModel):
    """A whole reply as a model would write it, or an action, which is put into such words."""

    reply: str | None = None
    action: dict[str, Any] | None = None
    revision: int | None = Field(default=None, description="What you saw last; another one is refused. Null: no guard.")


class AgainIn(BaseModel):
    turns: int = Field(default=0, ge=0, description="Begin with the first so many replies of this episode.")


class FixtureOut(BaseModel):
    path: str
    text: str
    revision: int
    """Of the draft that holds it."""


class PlayOut(BaseModel):
    """A hand-played episode as of now. `phase` is `yours` when a reply is awaited."""

    run_id: uuid.UUID
    rollout_id: uuid.UUID
    environment: str
    version: int
    split: Split
    index: int
    level: int
    seed: int
    phase: str
    message: str
    divergence: str
    revision: int
    turns: int
    max_turns: int
    text: str
    """What a model would read now."""
    observation: dict[str, Any]
    choices: list[str]
    """Replies that are legal now, where the manifest names them."""
    action_schema: dict[str, Any]
    steps: list[dict[str, Any]]
    authors: list[str]
    """Who wrote each reply: a policy's name, empty for the person."""
    columns: dict[str, float]
    """So far."""
    status: RolloutStatus
    stop_reason: StopReason | None
    reward: float | None
    """Of the finished episode."""
