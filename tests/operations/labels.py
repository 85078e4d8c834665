"""A small noun with an operation of each kind, declared as slices declare theirs."""

import uuid
from collections.abc import Iterator
from typing import Annotated

from fastapi import UploadFile
from pydantic import Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.errors import NotFound
from backend.operations.declaration import operation, reference
from backend.operations.schemas import Cli, Download, Progress, Request, Response
from backend.policies.tables import Policy
from backend.web.identity import Actor
from backend.web.paging import Page


@reference(Policy, "Name or id of a policy.")
def find_policy(session: Session, text: str) -> Policy:
    policy = session.scalar(select(Policy).where(Policy.name == text))
    if policy is None:
        raise NotFound(f"There is no policy {text}.")
    return policy


class Label(Response):
    """A label."""

    table_columns = ("name", "weight")

    id: uuid.UUID
    name: str
    weight: float = 0.0


class CreateLabel(Request):
    text: Annotated[str, Field(min_length=1, max_length=20, description="The label's text."), Cli(argument=True)]
    weight: float = Field(1.0, ge=0, le=2, description="Its weight.")
    is_shared: Annotated[bool, Field(description="Show it to everyone."), Cli(option="--shared")] = False


class ListLabels(Request):
    at_least: float | None = Field(None, description="Smallest weight.")


class ImportLabels(Request):
    file: UploadFile
    separator: str = Field(",", max_length=1, description="Between two labels.")


class Labeling(Progress):
    id: uuid.UUID


@operation(
    "POST /policies/{policy}/labels",
    role=Role.TRAINER,
    noun="labels",
    command="label create",
    tool=True,
    page="/policies/{id}",
    notice="The label {name} was created.",
)
def create_label(session: Session, actor: Actor, policy: Policy, request: CreateLabel) -> Label:
    """Create a label.

    It is stored with the policy.
    """
    policy.description = request.text
    session.flush()
    return Label(id=policy.id, name=request.text, weight=request.weight)


@operation("GET /labels", role=Role.VIEWER, noun="labels", command="label list", tool=True)
def list_labels(session: Session, actor: Actor, request: ListLabels) -> Page[Label]:
    """List labels."""
    labels = [Label(id=uuid.UUID(int=number), name=f"label{number}", weight=number / 2) for number in range(4)]
    return Page(items=[label for label in labels if label.weight >= (request.at_least or 0)])


@operation("POST /policies/{policy}/labels/copies", role=Role.TRAINER, noun="labels", command="label copy")
def copy_labels(session: Session, actor: Actor, policy: Policy) -> Page[Label]:
    """Copy all labels."""
    policy.description = "copied"
    return Page(items=[Label(id=policy.id, name="copy")])


@operation("DELETE /policies/{policy}/labels/{number}", role=Role.ADMIN, noun="labels", command="label delete")
def delete_label(session: Session, actor: Actor, policy: Policy, number: int) -> None:
    """Delete a label."""
    policy.description = f"without {number}"


@operation(
    "POST /policies/{policy}/labeling", role=Role.AUTHOR, noun="labels", command="label run", poll="/labeling/{id}"
)
def run_labels(session: Session, actor: Actor, policy: Policy) -> Labeling:
    """Label everything."""
    return Labeling(id=policy.id, is_finished=False, is_successful=False, message="queued")


@operation("GET /labels/file", role=Role.VIEWER, noun="labels", command="label export")
def export_labels(session: Session, actor: Actor, request: ListLabels) -> Download:
    """Download labels as a file."""

    def content(session: Session) -> Iterator[bytes]:
        for label in list_labels(session, actor, request).items:
            yield f"{label.name}\n".encode()

    return Download("labels.txt", "text/plain", content)


@operation("POST /labels/import", role=Role.AUTHOR, noun="labels", command="label import", max_body_size=1000)
def import_labels(session: Session, actor: Actor, request: ImportLabels) -> Label:
    """Import labels from a file."""
    names = request.file.file.read().decode().split(request.separator)
    return Label(id=uuid.UUID(int=len(names)), name=names[0])
