"""Requests and responses of shared links and reports."""

import uuid
from datetime import datetime
from typing import Annotated, ClassVar
from urllib.parse import quote, urlencode

from pydantic import Field, StringConstraints, field_validator

from backend.domain.shares import ShareKind
from backend.operations.schemas import Cli, ListRequest, Request, Response
from backend.results.comparison import MAX_SIDES
from backend.shares.tables import Share

MAX_DAYS = 90
Item = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]


class SharedItem(Request):
    """The item that a link or a report shows."""

    kind: Annotated[ShareKind, Cli(argument=True)] = Field(description="Kind of item.")
    item: Annotated[list[Item], Cli(argument=True)] = Field(
        min_length=1,
        max_length=MAX_SIDES,
        description="Id of a run, the name of an environment, or for a comparison two to eight runs as RUN, RUN@STEP or"
        " RUN@best.",
    )
    version: int | None = Field(
        None, ge=1, description="Environments and leaderboards only: number of the version. Default: the newest."
    )
    exam: str = Field(
        "", max_length=200, description="Leaderboards only: key of an evaluation setup. Default: the most common one."
    )

    @property
    def url(self) -> str:
        """The page of the item for members."""
        first = quote(self.item[0])
        chosen = {name: value for name, value in (("version", self.version), ("exam", self.exam)) if value}
        match self.kind:
            case ShareKind.RUN:
                return f"/runs/{first}"
            case ShareKind.SAFEGUARDS:
                return f"/runs/{first}/safeguards"
            case ShareKind.COMPARISON:
                return "/compare?" + urlencode({"run": self.item}, doseq=True)
            case ShareKind.ENVIRONMENT:
                return f"/environments/{first}" + (f"/versions/{self.version}" if self.version else "")
            case ShareKind.LEADERBOARD:
                return f"/leaderboards/{first}" + (f"?{urlencode(chosen)}" if chosen else "")


class CreateShare(SharedItem):
    days: int = Field(7, ge=1, le=MAX_DAYS, description="Lifetime in days.")

    @field_validator("item", mode="before")
    @classmethod
    def _as_list(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value


class ListShares(ListRequest):
    active: bool = Field(False, description="Only links that work. Default: also expired and revoked ones.")


class SharedLink(Response):
    table_columns: ClassVar = ("id", "kind", "name", "creator", "state", "expires_at", "used_at", "views")
    table_empty: ClassVar = "No shared links yet."

    id: uuid.UUID
    kind: ShareKind
    name: str = Field(description="The item's name when the link was created.")
    url: str = Field(description="Page of the item for members.")
    creator: str = Field(description="Name of the member who created the link.")
    state: str = Field(description="active, expired or revoked.")
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None
    used_at: datetime | None = Field(description="Last use, to the minute; null if it was never opened.")
    views: int = Field(description="Number of times that it was opened.")

    @classmethod
    def of_share(cls, share: Share) -> "SharedLink":
        item = SharedItem.model_validate(share.choice)
        return cls.from_row(share, url=item.url, creator=share.creator.name)


class NewShare(SharedLink):
    link: str = Field(description="The link with its secret. It is shown once.")


class ReportRequest(Request):
    against: list[Item] = Field(
        [],
        max_length=MAX_SIDES - 1,
        description="Runs with which to compare this one; the first is the baseline. Default: the report is of this run"
        " alone.",
    )
