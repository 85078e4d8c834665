"""Requests and responses of environments: packages, drafts, versions, certificates, hand play and imports."""

import uuid
from datetime import datetime
from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from fastapi import UploadFile
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Json

from backend.domain.environments.fixtures import FixtureKind
from backend.domain.environments.manifest import Name
from backend.domain.tags import MAX_TAG
from backend.domain.text import plain_text
from backend.domain.vocabulary import CheckStatus, RolloutStatus, RunStatus, Split, StopReason
from backend.operations.schemas import ItemListQuery, Labels, Progress, ProjectText, Request, Response

MAX_FILES_BODY_BYTES = 32 * 1024**2
"""A package of at most 5 MB whose every character JSON may escape."""

Files = Annotated[dict[str, str], Field(description="Text of each file by path.")]
Path = Annotated[str, Field(min_length=1, max_length=1000, description="Path of the file inside the package.")]
Quoted = Annotated[str, AfterValidator(plain_text)]
"""Text that quotes a package. Characters that JSON cannot carry are replaced."""


# Environments, drafts and versions


class ListEnvironments(Request):
    archived: bool = Field(False, description="Include archived environments.")
    project: ProjectText = None
    tag: str | None = Field(None, max_length=MAX_TAG, description="A tag of the environment.")


class EnvironmentListQuery(ItemListQuery):
    """The address of the list of environments."""

    sort: str = Field("name", max_length=130)
    archived: bool = False
    """Include archived environments."""


class CreateEnvironment(Request):
    """Give either a template or the files."""

    name: Name = Field(description="Lowercase letters, digits and `_`, starting with a letter.")
    template: str | None = Field(
        None, description="Template to start from, or `copy:NAME` or `copy:NAME@VERSION` to copy an environment."
    )
    files: Files | None = None


class ValidatePackage(Request):
    files: Files
    name: str | None = Field(None, description="Name of the environment, to compare with the manifest.")


class ReplaceDraft(Request):
    files: Files
    revision: int | None = Field(
        None,
        description="Revision of the draft that you started from. The request fails if the draft has changed since. "
        "Default: overwrite the current draft.",
    )


class ReadDraftFile(Request):
    path: Path


class WriteDraftFile(Request):
    path: Path
    text: str = Field(max_length=4_000_000, description="New text of the whole file.")
    revision: int | None = Field(
        None,
        description="Revision of the draft that you read. The request fails if the draft has changed since. "
        "Default: overwrite the current file.",
    )


class DeleteDraftFile(Request):
    path: Path
    revision: int | None = Field(
        None, description="Revision of the draft that you read. Default: delete the current file."
    )


class PublishVersion(Request):
    notes: str = Field("", max_length=10_000, description="Release notes of the version.")
    revision: int | None = Field(None, description="Revision of the draft to publish. Default: the current one.")
    check: bool = Field(True, description="Run the checks of the new version.")
    regrade: bool = Field(False, description="Score the environment's past rollouts with the new version's rewards.")


class StartChecks(Request):
    policy: str = Field(
        "",
        max_length=120,
        description="Policy that also attempts the tasks: name, id, or `<policy id>:<checkpoint id>`. "
        "Default: scripted policies of the package only.",
    )


class DiffVersions(Request):
    before: str = Field("", max_length=20, description="A version number or `draft`. Default: the latest version.")
    after: str = Field("draft", max_length=20, description="A version number or `draft`.")


class RewardColumn(Response):
    name: str
    weight: float
    over_episode: str
    range: tuple[float, float] | None


class VersionResponse(Response):
    table_columns: ClassVar = ("number", "content_hash", "certificate", "published_by", "published_at", "notes")
    table_empty: ClassVar = "No version has been published yet."

    id: uuid.UUID
    environment: str
    number: int
    content_hash: str
    certificate: CheckStatus | None
    """Status of the latest certificate; null if the version has not been checked."""
    notes: str
    published_by: str | None
    published_at: datetime
    columns: list[RewardColumn]


class VersionDetail(VersionResponse):
    manifest: dict[str, object]
    files: dict[str, str]
    """Text by path."""


class ExportedPackage(Response):
    files: dict[str, str]
    """Text by path."""
    added: list[str]
    """Paths that the version lacks or has in another form."""
    content_hash: str
    """Hash of the version."""


class EnvironmentResponse(Labels):
    name: str
    description: str
    is_built_in: bool
    created_at: datetime
    archived_at: datetime | None
    versions: int
    latest: VersionResponse | None


class EnvironmentDetail(EnvironmentResponse):
    draft_revision: int
    draft_updated_at: datetime
    is_draft_published: bool


class PackageProblem(Response):
    path: Quoted
    line: int
    key: Quoted
    message: Quoted


class ValidationResponse(Response):
    is_publishable: bool
    problems: list[PackageProblem]
    columns: list[RewardColumn]
    content_hash: str


class DraftFile(Response):
    path: str
    text: str
    revision: int
    """Revision of the draft."""


class DraftSaved(Response):
    """The draft after a change, without its files."""

    environment: str
    revision: int
    updated_at: datetime
    validation: ValidationResponse


class DraftResponse(DraftSaved):
    files: dict[str, str]
    """The complete package: text by path."""
    generated: list[str]
    """Paths of the files that Proctor generates. Write one to replace it."""


class DiffLineResponse(Response):
    kind: str
    """`same`, `added`, `removed` or `gap`."""
    text: str
    before: int | None
    """Line number in the file before."""
    after: int | None


class FileDiffResponse(Response):
    path: str
    change: str
    """`added`, `removed` or `changed`."""
    lines: list[DiffLineResponse]


class DiffResponse(Response):
    files: list[FileDiffResponse]


# Checks, certificates and the network


class CheckRunResponse(Response):
    run_id: uuid.UUID
    status: RunStatus
    version: int
    policy: str | None = None
    """Policy that also attempts the tasks; null: scripted policies only."""
    certificate: CheckStatus | None = None


class CoverageShareResponse(Response):
    """A share of the audit's coverage with Wilson's 95% interval."""

    check: str
    """The check that measured it."""
    label: str
    found: int
    total: int
    share: float
    low: float
    high: float


class AuditCoverageResponse(Response):
    """How much of the grader the audit tested."""

    shares: list[CoverageShareResponse]
    """Wrong answers that lose, right answers that keep the reward, branches of the grader that are executed."""
    score: float | None
    """Geometric mean of the shares. Null unless all three were measured, each on at least four."""
    low: float | None
    """Limits of the score's 95% interval."""
    high: float | None


class CertificateResponse(Response):
    id: uuid.UUID
    run_id: uuid.UUID
    status: CheckStatus
    created_at: datetime
    content_hash: str
    """Hash of the version that the certificate applies to."""
    results: list[dict[str, object]]
    """`check`, `theme`, `sentence`, `status`, `evidence`, `details`, `seconds`, `episodes`, `rollouts`, `applies`, in
    the order checked."""
    coverage: AuditCoverageResponse | None
    """Null if the audit could not test the grader."""


class CertificateFile(StrEnum):
    SIGNED = "signed"
    """A DSSE envelope with an in-toto Statement."""
    SARIF = "sarif"
    JUNIT = "junit"
    BADGE = "badge"


class DownloadCertificate(Request):
    form: CertificateFile = Field(
        CertificateFile.SIGNED,
        description="`signed`: JSON for `proctor certificate verify`. `sarif`: SARIF 2.1.0 for code scanning. `junit`: "
        "JUnit XML for CI. `badge`: an SVG, also without a certificate.",
    )


class CertificateKeyResponse(Response):
    """The public key that verifies the certificates of this installation."""

    public_key: str
    """Ed25519, PEM."""
    fingerprint: str
    """SHA-256 over the key in DER form (SubjectPublicKeyInfo)."""
    created_at: datetime


class NetworkResponse(Response):
    """The hosts that a manifest requests, and whether the version's servers may reach the network."""

    hosts: list[str]
    is_open: bool
    is_granted: bool
    granted_by: str | None
    granted_at: datetime | None
    is_closed: bool
    words: str


# Hand play and trials of a draft


class ChooseTask(Request):
    version: int | None = Field(None, ge=1, lt=2**31, description="Version number. Default: the latest.")
    split: Split = Field(Split.TRAIN, description="Split to take the task from.")
    level: int | None = Field(None, ge=0, description="Difficulty level. Default: random.")
    index: int | None = Field(None, ge=0, description="Number of the task. Default: random.")
    seed: int | None = Field(None, ge=0, description="Seed of the task. Default: random.")


class StartPlay(ChooseTask):
    seat: str | None = Field(
        None, max_length=40, description="Seat to take, if the environment has seats. Default: by the task."
    )
    opponent: str | None = Field(
        None,
        max_length=120,
        description=(
            "Policy that takes the other seats, by id or name, or `<policy id>:<checkpoint id>`. "
            "Default: the environment's script."
        ),
    )


class SeenEpisode(Request):
    revision: int | None = Field(
        None, description="Revision of the episode that you saw. A different one is refused. Default: not compared."
    )


class SendReply(SeenEpisode):
    """Give either a reply as a model would write it, or an action."""

    reply: str | None = Field(None, description="The whole reply.")
    action: dict[str, object] | None = Field(None, description="An action; it is written as a reply for you.")


class ReplayEpisode(Request):
    turns: int = Field(0, ge=0, description="Number of replies of this episode to start with.")


class LetPolicyPlay(SeenEpisode):
    policy: str = Field(
        min_length=1, max_length=120, description="Policy by id or name, or `<policy id>:<checkpoint id>`."
    )
    moves: int | None = Field(None, ge=1, le=1000, description="Number of turns. Default: to the end of the episode.")


class ReplaceOpponent(SeenEpisode):
    opponent: str = Field(
        "",
        max_length=120,
        description=(
            "Policy that takes the other seats from now on, by id or name, or `<policy id>:<checkpoint id>`. "
            "Default: the environment's script."
        ),
    )


class BranchRollout(Request):
    rollout_id: uuid.UUID = Field(description="Rollout to continue.")
    turns: int = Field(0, ge=0, le=1000, description="Number of its replies to start with.")
    seat: str | None = Field(
        None, max_length=40, description="Seat to take, if several policies played. Default: the rollout's."
    )
    opponent: str | None = Field(
        None,
        max_length=120,
        description=(
            "Policy that takes the other seats, by id or name, or `<policy id>:<checkpoint id>`. "
            "Default: the same as in the rollout."
        ),
    )


class SaveFixture(Request):
    rollout_id: uuid.UUID = Field(description="Finished rollout to save.")
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,59}$", description="Lowercase letters, digits, `_` and `-`.")
    note: str = Field("", max_length=2000, description="Why the episode matters.")
    kind: FixtureKind = Field(FixtureKind.SCORED, description="Condition that the fixture checks.")


class MarkDemonstration(Request):
    rollout_id: uuid.UUID = Field(description="Finished rollout on a training task.")
    is_wanted: bool = Field(False, description="Whether the SFT warm-up may learn from it.")


class FixtureResponse(Response):
    path: str
    text: str
    revision: int
    """Revision of the draft that contains it."""


class DemonstrationResponse(Response):
    rollout_id: uuid.UUID
    is_wanted: bool
    state: str
    """`marked` or `no longer marked`."""


class PlayResponse(Response):
    """A hand-played episode. `phase` is `yours` when it waits for your reply."""

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
    """The prompt that a model would read now."""
    observation: dict[str, object]
    choices: list[str]
    """Legal replies, if the manifest names them."""
    action_schema: dict[str, object]
    steps: list[dict[str, object]]
    authors: list[str]
    """Author of each reply: a policy's name, or empty for the person."""
    columns: dict[str, float]
    """Reward columns so far."""
    status: RolloutStatus
    stop_reason: StopReason | None
    reward: float | None
    """Reward of the finished episode."""
    seat: str | None
    """The person's seat, if the environment has seats."""
    opponent: str
    """Who takes the other seats; empty if there are none."""
    score: float | None
    """Result of a finished game: 1 for a win, 0.5 for a draw, 0 for a loss."""


class TrialResponse(Response):
    """An episode on a draft. It is not stored as a rollout."""

    task: dict[str, object]
    is_waiting: bool
    """Whether a worker is still computing the answer. Read the trial again."""
    draft_revision: int
    """Revision of the draft that answered."""
    replies: list[str]
    answer: dict[str, object]
    """`opening`, `steps`, `messages`, `columns` [name, value, weight], `reward`, `status`, `error` and traceback."""


class RunScript(Request):
    script: str = Field("gold", min_length=1, max_length=40, description="Scripted policy of the package.")


# The red team


class StartAttack(Request):
    seconds: int = Field(60, ge=10, le=600, description="Time budget in seconds.")
    policy: str = Field(
        "", max_length=120, description="Endpoint whose LLM attacks as well: name or id. Default: no LLM."
    )
    tokens: int = Field(
        50_000, ge=1000, le=10_000_000, description="Maximum number of tokens of the LLM, prompts and replies."
    )
    train: bool = Field(
        False,
        description="Also train a small policy on the draft's reward with GRPO, on a worker with torch, within the same"
        " time budget.",
    )


class AddFixtures(Request):
    fixtures: list[str] = Field([], max_length=100, description="Names of proposed fixtures. Default: all.")


class PublishRepair(Request):
    notes: str = Field("", max_length=10_000, description="Release notes of the version.")


class ExploitResponse(Response):
    """A way to earn reward without doing the task."""

    attack: str
    """`enumerated`, `search`, `llm` or `trained`."""
    description: Quoted
    mean: float
    low: float
    high: float
    """95% limits of the mean reward over different tasks."""
    episodes: int
    split: str
    index: int
    """Task of the episode with the highest reward."""
    replies: list[Quoted]
    reward: float
    columns: dict[str, float]
    oracle: float | None = None
    """Mean grade of these episodes by the environment's oracle, from 0 to 1. Null without one."""
    fixture: str
    """Name of the proposed fixture."""
    is_in_draft: bool


class RepairCheckResponse(Response):
    check: str
    label: str
    status: str
    applies: bool
    evidence: Quoted


class AttackResponse(Progress):
    """An attack on a draft, or the verification of a repair."""

    id: uuid.UUID
    kind: str
    """`attack` or `verification`."""
    environment: str
    error: str
    is_stale: bool
    """The draft was saved since."""
    exploits: list[ExploitResponse]
    """Found so far."""
    notes: list[Quoted]
    """Work and costs of each attack, in sentences."""
    results: list[RepairCheckResponse]
    """Checks of a verification."""
    holds: bool | None
    """Whether a verified repair may be published. Null for an attack, or until it is known."""


# The editor's forms


class EditedFile(BaseModel):
    """One file from the editor."""

    path: str = Field(max_length=1000)
    text: str = Field(default="", max_length=4_000_000)
    mark: str = ""
    revision: int = Field(ge=1)
    then: Literal["save", "autosave", "overwrite", "publish"] = "save"
    notes: str = Field(default="", max_length=10_000)
    check: bool = False
    """Run the checks of the published version. The box is ticked by default; browsers omit an unticked box."""
    regrade: bool = False
    """Score past rollouts with the published version's rewards."""
    beside: uuid.UUID | None = None
    """Rollout that is shown next to the code."""


class OpenFile(BaseModel):
    """The file in the editor while a form next to it changes other files."""

    path: str = Field(max_length=1000)
    mark: str = ""
    revision: int = Field(ge=1)


class FixtureColumn(OpenFile):
    """A column that fixtures state and the manifest does not declare."""

    column: str = Field(max_length=200)
    heir: str = Field("", max_length=200)
    """Its new name. Default: it is removed from the fixtures."""


class FixturesBefore(OpenFile):
    fixtures: Json[dict[Annotated[str, Field(max_length=200)], str]]
    """Text by path."""


# Imports


class StartImport(Request):
    """Give `archive`, or `url` with its kind."""

    kind: Literal["zip", "git", "remote"] = Field(
        "zip", description="A zip, a git repository, or a server that is already running."
    )
    archive: str | None = Field(None, description="A zip of the package's files, in Base64.")
    source: str = Field("", max_length=500, description="Where the zip came from, shown to people.")
    url: str = Field("", max_length=1000, description="Address of the repository or server.")
    reference: str = Field("", max_length=200, description="Branch or tag of the repository.")
    path: str = Field("", max_length=500, description="Folder of the package in the zip or repository.")
    name: str = Field("", max_length=40, description="Name of the environment. Default: the package's name.")
    requires: list[str] = Field([], max_length=50, description="Additional Python requirements.")
    variables: dict[str, str] = Field({}, max_length=100, description="Environment variables.")


class ImportForm(BaseModel):
    """The page's form: a zip, or the address of a repository or of a running server."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    kind: Literal["zip", "git", "remote"] = "zip"
    package: UploadFile | None = None
    url: str = Field(default="", max_length=1000)
    reference: str = Field(default="", max_length=200)
    path: str = Field(default="", max_length=500)
    name: str = Field(default="", max_length=40)
    requires: str = Field(default="", max_length=2000)
    """One requirement per line."""
    variables: str = Field(default="", max_length=8000)
    """One NAME=value per line."""


class ReplaceBlock(Request):
    block: str = Field(max_length=200_000, description="The manifest's `proctor:` block as YAML.")


class MapColumns(Request):
    columns_from: str = Field(
        "", max_length=200, description="Dictionary of the observation that holds the reward columns. Default: none."
    )


class CreateFromImport(Request):
    name: Name | None = Field(None, description="Name of the environment. Default: the name that the import proposes.")


class ImportResponse(Response):
    """An import with its report."""

    table_columns = ("id", "name", "kind", "status", "phase", "environment", "source")
    table_empty = "Nothing has been imported yet."

    id: uuid.UUID
    name: str
    kind: str
    source: str
    status: str
    phase: str
    report: dict[str, object]
    block: str
    columns_from: str | None
    problems: list[str]
    """Problems of the current block."""
    prompt: dict[str, str]
    """`system` and `user`: the first prompt that a model would read."""
    environment: str | None
    """Name of the environment that was created from it."""
    created_at: datetime
    ended_at: datetime | None


class ImportLog(Response):
    log: str
