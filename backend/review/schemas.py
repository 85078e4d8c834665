"""What review operations and pages take and return: the queue, verdicts, flags, assignments, fixtures."""

import uuid
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field, StringConstraints

from backend.domain.vocabulary import Severity, Verdict
from backend.operations.ids import parse_id
from backend.operations.schemas import Cli, ListRequest, ProjectText, Request, Response


class Part(StrEnum):
    """Which part of the review queue is listed."""

    UNREVIEWED = "unreviewed"
    SECOND = "second"
    """Reviewed by one other person: a second verdict measures agreement."""
    REVIEWED = "reviewed"
    ALL = "all"


class Order(StrEnum):
    HARM = "harm"
    """Flagged items alone, by expected harm, with the reason for each flag."""
    SUSPICION = "suspicion"
    """Suspicion times reward, one example of each cluster before its repeats."""
    NEWEST = "newest"
    INTERVAL = "interval"
    """The audit sample alone, flagged or not, in its random order: it narrows the corrected reward's interval."""


class ReviewFilter(BaseModel):
    """A filter and order of the review queue, as in a page's address; every field is optional."""

    shown: Part = Part.UNREVIEWED
    mine: bool = False
    """Assigned to the person who asks, and not reviewed by them."""
    detector: str = Field("", max_length=60)
    environment: str = Field("", max_length=40)
    run: Annotated[uuid.UUID | None, BeforeValidator(lambda run: parse_id(str(run)))] = None
    """An empty or malformed id is ignored."""
    project: str = Field("", max_length=60)
    """Name or id. Empty: the project that the person works in, else all."""
    order: Order = Order.HARM

    @property
    def lists_flagged(self) -> bool:
        """Whether only flagged items are listed, with their flags. Other lists in the order of harm are blind."""
        return self.order is Order.HARM and self.shown is Part.UNREVIEWED and not self.mine


class QueueRequest(Request):
    """Narrows the review queue."""

    shown: Part = Field(Part.UNREVIEWED, description="Part of the queue to list.")
    mine: bool = Field(False, description="Items assigned to you only.")
    detector: str = Field("", max_length=60, description="Items that this detector flagged. The review is not blind.")
    environment: str = Field("", max_length=40, description="Items of this environment only.")
    run: str = Field("", max_length=200, description="Items of this run only: its id, the end of it, or `last`.")
    project: ProjectText = None
    order: Order = Field(
        Order.SUSPICION,
        description="Order of the queue. `harm` lists flagged items alone, with their flags; the review is not blind. "
        "`interval` lists the audit sample.",
    )


class ListReviewItems(QueueRequest, ListRequest):
    """A page of the review queue."""

    command_limit = 20


class ReadReviewItem(QueueRequest):
    evidence: bool = Field(False, description="Include flags and other verdicts. The review is not blind.")


class VerdictRequest(Request):
    verdict: Annotated[Verdict, Cli(argument=True)]
    comment: Annotated[str, StringConstraints(strip_whitespace=True, max_length=4000)] = Field(
        "", description="Reason for the verdict."
    )


class ReviewItemVerdict(VerdictRequest):
    evidence: bool = Field(False, description="You saw the evidence before you decided.")


class WriteComment(Request):
    text: str = Field(
        min_length=1,
        max_length=4000,
        description="What you want to say. @ and a member's name or email address notifies them.",
    )


class CommentResponse(Response):
    table_columns = ("created_at", "person", "text")
    table_empty = "No comments."

    id: uuid.UUID
    person_id: uuid.UUID | None
    person: str
    text: str
    created_at: datetime


class UndoVerdict(Request):
    verdict: uuid.UUID | None = Field(None, description="Id of your verdict. Default: your latest one in force.")


class ClusterVerdict(Request):
    """A verdict on all unreviewed items of a cluster."""

    verdict: Verdict = Field(description="The verdict that reviewers agreed on, or `unsure` to take it back.")


class AssignReviewItems(QueueRequest):
    person: Annotated[str, Cli(argument=True)] = Field(
        max_length=320, description="`me`, or the email address or id of a member."
    )
    item: Annotated[str, Cli(argument=True)] = Field(
        "", max_length=200, description="An item. Default: the first unassigned items of the queue."
    )
    count: int = Field(20, ge=1, le=500, description="Number of unassigned items to take.")


class AssignItem(Request):
    person: uuid.UUID = Field(description="Id of the reviewer.")


class AssignForm(AssignItem):
    count: int = Field(default=1, ge=1, le=500)


class ReviewTargetRequest(Request):
    per_day: int = Field(ge=1, le=1000, description="Number of items that you intend to review per day.")


class AuditLimitRequest(Request):
    audits_per_day: Annotated[int, Cli(argument=True)] = Field(
        ge=1, le=1000, description="Number of rollouts in the audit sample per day, of all runs."
    )


class AuditLimitResponse(Response):
    audits_per_day: int


class ItemFlag(Response):
    """A flag on an item under review."""

    id: uuid.UUID
    detector: str
    severity: str
    score: float
    sentence: str
    cluster: str | None
    evidence: dict[str, object]


class ReviewItemResponse(Response):
    id: uuid.UUID
    """Id of the rollout, or of the flag if the flag is about a run."""
    run_id: uuid.UUID
    run: str
    environment: str
    version: int
    rollout_id: uuid.UUID | None
    training_step: int | None
    reward: float | None
    reward_columns: dict[str, float] = Field(serialization_alias="columns")
    waits: bool
    """The item has no verdict."""
    assigned_to: list[uuid.UUID]
    verdict: Verdict | None = None
    """The newest verdict. Null while it is hidden from you, as are flags and cluster."""
    flags: list[ItemFlag] | None = None
    """Null while they are hidden from you (see `evidence`). Empty: the item belongs to the audit sample."""
    cluster: str | None = None
    created_at: datetime
    """When the rollout was stored, or when the run was flagged."""


class ReviewItemDetail(ReviewItemResponse):
    messages: list[dict[str, object]]
    siblings: list[uuid.UUID]
    """Other rollouts of its group."""
    base: list[uuid.UUID]
    """Rollouts of the same task before training."""


class ReviewStats(Response):
    matching: int
    """Items that match the filter. All other figures depend only on `shown` and `mine`."""
    by_detector: dict[str, int]
    """Items by detector. An item with flags of several detectors counts for each."""
    by_environment: dict[str, int]
    waiting: int
    """Items without a verdict."""
    flagged: int
    """Items without a verdict in the order `harm`: flagged, and not in the audit sample."""
    audits: int
    """Items of the audit sample without a verdict."""
    audits_today: int
    """Rollouts in today's audit sample, reviewed or not."""
    audits_per_day: int
    """Limit of the audit sample per day."""
    mine: int
    """Items assigned to you."""
    today: int
    per_day: int
    judged_twice: int
    """Rollouts that a second person reviewed without knowing the first verdict."""
    agreeing: int
    kappa: float | None
    """Cohen's kappa of both verdicts."""


class AssignedItems(Response):
    items: list[uuid.UUID]


class ClusterReviewed(Response):
    count: int


class VerdictResponse(Response):
    id: uuid.UUID
    run_id: uuid.UUID
    rollout_id: uuid.UUID | None
    flag_id: uuid.UUID | None
    verdict: Verdict
    comment: str
    person_id: uuid.UUID | None
    created_at: datetime
    taken_back_at: datetime | None
    """Set once the reviewer took the verdict back: it has no effect any more."""


class FlagPart(StrEnum):
    """Which flags are listed."""

    UNREVIEWED = "unreviewed"
    REVIEWED = "reviewed"
    ALL = "all"


class ListFlags(ListRequest):
    shown: FlagPart = Field(FlagPart.UNREVIEWED, description="Flags to list.")
    detector: str = Field("", max_length=60, description="Flags of this detector only.")
    environment: str = Field("", max_length=40, description="Flags of this environment only.")
    run: str = Field("", max_length=200, description="Flags of this run only: its id, the end of it, or `last`.")


class FlagResponse(Response):
    id: uuid.UUID
    run_id: uuid.UUID
    rollout_id: uuid.UUID | None
    """Null: the flag is about the run."""
    detector: str
    severity: Severity
    score: float
    sentence: str
    evidence: dict[str, object]
    cluster: str | None
    """Rollouts that show the same pattern have the same cluster."""
    training_step: int | None
    created_at: datetime
    verdict: Verdict | None = None
    """The newest verdict; null until the flag is reviewed."""


Bound = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]


class KeepFixture(Request):
    verdict: Verdict | None = Field(None, description="Verdict to give first. Default: the rollout has one.")
    bound: Bound | None = Field(
        None,
        description="Highest reward of a hack, or lowest of an honest episode; authors only. Default: floor or reward.",
    )


class ChangeBound(Request):
    bound: Bound = Field(description="Highest reward of a hack, or lowest of an honest episode.")


class WithdrawForm(BaseModel):
    because: Annotated[str, Field(max_length=500)] = ""


class JudgedFixtureResponse(Response):
    """A reviewed episode that every certificate replays."""

    id: uuid.UUID
    name: str
    environment_id: uuid.UUID
    rollout_id: uuid.UUID | None
    lowest: float | None
    """An honest episode must earn at least this."""
    highest: float | None
    """A hack must earn at most this."""
    created_by: uuid.UUID | None
    created_at: datetime
    withdrawn_by: uuid.UUID | None
    withdrawn_at: datetime | None
    withdrawn_because: str
