"""Requests and responses of deletions."""

import uuid
from datetime import datetime
from typing import Annotated, ClassVar

from pydantic import Field

from backend.deletions.tables import Deletion
from backend.domain.deletions import DeletedKind, in_words
from backend.operations.schemas import Cli, ListRequest, Request, Response

ItemName = Annotated[str, Field(max_length=200)]
MAX_ITEMS = 500


class DeleteItems(Request):
    environments: Annotated[list[ItemName], Cli(option="--environment")] = Field(
        [], max_length=MAX_ITEMS, description="Names or ids of environments."
    )
    runs: Annotated[list[ItemName], Cli(option="--run")] = Field([], max_length=MAX_ITEMS, description="Ids of runs.")
    checkpoints: Annotated[list[ItemName], Cli(option="--checkpoint")] = Field(
        [], max_length=MAX_ITEMS, description="Ids of checkpoints."
    )
    studies: Annotated[list[ItemName], Cli(option="--study")] = Field(
        [], max_length=MAX_ITEMS, description="Ids of studies."
    )
    graders: Annotated[list[ItemName], Cli(option="--grader")] = Field(
        [], max_length=MAX_ITEMS, description="Names or ids of graders."
    )


class ListDeletions(ListRequest):
    """Which page of the deletions."""


class DeletionPlanResponse(Response):
    """Everything that the deletion of one item would take along, and reasons to refuse it."""

    table_columns: ClassVar = ("kind", "name", "summary", "refusals")

    kind: DeletedKind
    item_id: uuid.UUID
    name: str
    contents: dict[str, int] = Field(description="Numbers of rows that are deleted with it, by kind.")
    kept: int = Field(description="Number of other runs that use it or its checkpoints. They are kept.")
    summary: str = Field(description="The contents as text.")
    notes: list[str] = Field(description="What stays, and what is lost.")
    refusals: list[str] = Field(description="Reasons why it cannot be deleted now.")


class DeletionResponse(Response):
    """A deletion that can be undone."""

    table_columns: ClassVar = ("id", "kind", "name", "summary", "deleted_by", "deleted_at", "purge_at")
    table_empty: ClassVar = "Nothing was deleted in the last 30 days."

    id: uuid.UUID
    kind: DeletedKind
    item_id: uuid.UUID = Field(description="Id of the deleted item, which it has again once it is restored.")
    name: str
    contents: dict[str, int] = Field(description="Numbers of rows that were deleted with it, by kind.")
    summary: str = Field(description="The contents as text.")
    deleted_by: str | None = Field(description="Name of the person. Null: they left.")
    deleted_at: datetime
    purge_at: datetime = Field(description="When its rows and files are removed.")
    is_purging: bool = Field(description="Whether they are being removed, so that it cannot be restored.")

    @classmethod
    def of_deletion(cls, row: Deletion) -> "DeletionResponse":
        return cls.from_row(
            row,
            summary=in_words(row.contents),
            deleted_by=row.person.name if row.person else None,
            is_purging=row.purge_started_at is not None,
        )
