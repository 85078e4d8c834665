"""What is asked of questions: the form and the JSON body by which one is added or changed, tried and asked."""

import re
import uuid
from typing import Annotated

from pydantic import BeforeValidator, Field, StringConstraints

from backend.domain.graders.questions import AnswerType, QuestionConfiguration, QuestionKind
from backend.graders.requests import InquiryRequest, WorkRequest

_DEFAULTS = QuestionConfiguration(text="…")


def _listed(value: object) -> object:
    """A form has them in one line, parted by commas or blanks; JSON has a list."""
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return [word for part in value for word in re.split(r"[,\s]+", part.strip()) if word]
    return value


Words = Annotated[list[str], BeforeValidator(_listed)]


class QuestionRequest(InquiryRequest):
    """A question to add, or what one shall be from now on. Its answer is the column `question.<name>`."""

    kind: QuestionKind = QuestionKind.QUESTION
    text: Annotated[str, StringConstraints(strip_whitespace=True, max_length=4000)] = ""
    """In plain words. Of a monitor or a contrast: what else to look for."""
    answers: AnswerType | None = None
    """`yes_no` (the default), `one_to_five` or `labels`; a monitor and a contrast answer by a suspicion."""
    labels: Words = Field(default=[])
    flags: Words = Field(default=[])
    """Answers that raise a flag; none by default."""
    flags_from: float = Field(default=_DEFAULTS.flags_from, ge=0, le=1, allow_inf_nan=False)
    """Suspicion from which a monitor or a contrast raises a flag."""
    each: int = Field(default=_DEFAULTS.each, ge=1, le=6)
    """Of a contrast: how many that earned much, and how many that earned little."""

    def configuration(self) -> QuestionConfiguration:
        """Raises ValidationError."""
        is_own = self.kind is QuestionKind.QUESTION
        answers = (self.answers or AnswerType.YES_NO) if is_own else AnswerType.SUSPICION
        values = self.model_dump(exclude={"name", "policy_id", "answers", "labels", "flags"})
        return QuestionConfiguration(
            **values,
            answers=answers,
            labels=tuple(self.labels) if answers is AnswerType.LABELS else (),
            flags=tuple(self.flags) if is_own else (),
        )


class AskingRequest(WorkRequest):
    """Ask a question about a run's rollouts."""

    question_id: uuid.UUID
    cluster: Annotated[str, StringConstraints(strip_whitespace=True, max_length=300)] = ""
    """Of a contrast: `detector: cluster`, to show its rollouts beside those of the same tasks that earned little."""
