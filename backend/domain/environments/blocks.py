"""Parts that every block of a manifest shares."""

from pydantic import BaseModel, ConfigDict, ValidationInfo
from pydantic_core import PydanticCustomError

from backend.domain.templates import template_problem

READING = "reading"
"""Validation context of a manifest that an author writes, as opposed to a stored one."""


class ManifestBlock(BaseModel):
    """The manifest or a part of it: immutable, without unknown keys."""

    model_config = ConfigDict(allow_inf_nan=False, extra="forbid", frozen=True)


def checked_template(text: str, info: ValidationInfo) -> str:
    """Check a template only when an author writes it: stored versions with older templates must open."""
    if info.context == READING and (problem := template_problem(text)):
        context = {"message": f"template does not compile: {problem}", "line": problem.line}
        raise PydanticCustomError("template", "{message}", context)
    return text
