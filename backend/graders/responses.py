"""What the JSON API says of judges and questions alike."""

import uuid
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator

from backend.domain.vocabulary import Verdict
from backend.graders.queries import Try
from backend.policies.tables import Policy
from backend.review.agreement import Agreement


def _name(policy: Policy | str) -> str:
    return policy.name if isinstance(policy, Policy) else policy


PolicyName = Annotated[str, BeforeValidator(_name)]


class TryAnswer(BaseModel):
    """A try. Ask again until `is_waiting` is false."""

    id: uuid.UUID
    is_waiting: bool
    answer: dict[str, Any] | None

    @classmethod
    def of(cls, found: Try[Any]) -> Self:
        return cls(id=found.job.id, is_waiting=not found.is_over, answer=found.answer)


class DisagreementAnswer(BaseModel):
    rollout_id: uuid.UUID
    score: float
    verdict: Verdict


class AgreementAnswer(BaseModel):
    """Scores beside people's verdicts: honest against hack and broken reward."""

    count: int
    honest: int
    auc: float
    threshold: float
    accuracy: float
    kappa: float
    disagreements: list[DisagreementAnswer]

    @classmethod
    def of(cls, found: Agreement | None) -> "AgreementAnswer | None":
        return cls.model_validate(found, from_attributes=True) if found else None
