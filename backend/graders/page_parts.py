"""What the pages of judges and questions have in common: the list, the form, the choices of a run's page."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from sqlalchemy.orm import Session

from backend.graders.queries import I, askable_policies, get_inquiry, in_use
from backend.graders.service import Rules
from backend.graders.tables import Inquiry
from backend.policies.tables import Policy

C = TypeVar("C")
F = TypeVar("F")


@dataclass(frozen=True, slots=True)
class Listed(Generic[I, C, F]):
    """One of a list: how it is asked, and what all that it said amounts to."""

    row: I
    configuration: C
    figures: F


@dataclass(frozen=True, slots=True)
class InquiryForm(Generic[I]):
    """What a form begins with: nothing, a copy, or one that was not used yet."""

    source: I | None
    """What its fields are taken from; None: it is blank."""
    is_copy: bool
    policies: Sequence[Policy]
    """That can be asked."""

    @property
    def row(self) -> I | None:
        """The one to change."""
        return None if self.is_copy else self.source

    @property
    def name(self) -> str:
        if self.source is None or not self.is_copy:
            return self.source.name if self.source else ""
        return f"{self.source.name[:36]}_2" if self.source.deleted_at is None else ""

    @property
    def policy_id(self) -> uuid.UUID | None:
        return self.source.policy_id if self.source else None

    @property
    def policy_choices(self) -> list[tuple[str, str]]:
        """Each with what it acts through."""
        return [(str(policy.id), f"{policy.name} ({_acts_through(policy)})") for policy in self.policies]


def listed(
    session: Session,
    rows: type[I],
    configuration_of: Callable[[I], C],
    count: Callable[[Session, Sequence[uuid.UUID]], Mapping[uuid.UUID, F]],
    nothing: F,
) -> list[Listed[I, C, F]]:
    """All by name. `nothing`: the figures of one that said nothing yet."""
    found = in_use(session, rows)
    figures = count(session, [row.id for row in found])
    return [Listed(row, configuration_of(row), figures.get(row.id, nothing)) for row in found]


def new_form(session: Session, rows: type[I], copy: uuid.UUID | None) -> InquiryForm[I]:
    """Blank, or a copy to be changed."""
    return InquiryForm(get_inquiry(session, rows, copy) if copy else None, True, askable_policies(session))


def change_form(session: Session, rules: Rules[I], id: uuid.UUID) -> InquiryForm[I]:
    row = get_inquiry(session, rules.rows, id)
    rules.refuse_used(session, row)
    return InquiryForm(row, False, askable_policies(session))


def inquiry_choices(rows: Sequence[Inquiry]) -> list[tuple[str, str]]:
    """Each with its policy."""
    return [(str(row.id), f"{row.name} ({row.policy.name})") for row in rows]


def _acts_through(policy: Policy) -> str:
    return str(policy.configuration.get("model") or policy.configuration.get("script") or policy.kind)
