"""What a pre-flight found: one sentence each, how bad it is, and what to do about it."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class FindingStatus(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """It may go on; think about it."""
    PROBLEM = "problem"
    """The run would fail or learn nothing."""


class PreflightFinding(BaseModel):
    """One thing that was looked at."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    """`batch`, `memory`, `base_success`, …"""
    status: FindingStatus
    sentence: str
    """What was seen, with its numbers."""
    advice: str = ""
    """What to do about it."""
    evidence: dict[str, Any] = Field(default_factory=dict)
    """Figures behind the sentence."""


def ok(name: str, sentence: str, **evidence: Any) -> PreflightFinding:
    return PreflightFinding(name=name, status=FindingStatus.OK, sentence=sentence, evidence=evidence)


def warning(name: str, sentence: str, advice: str = "", **evidence: Any) -> PreflightFinding:
    return PreflightFinding(
        name=name, status=FindingStatus.WARNING, sentence=sentence, advice=advice, evidence=evidence
    )


def problem(name: str, sentence: str, advice: str = "", **evidence: Any) -> PreflightFinding:
    return PreflightFinding(
        name=name, status=FindingStatus.PROBLEM, sentence=sentence, advice=advice, evidence=evidence
    )


def told_of(finding: PreflightFinding, environment: str) -> PreflightFinding:
    """One of several environments: it is named, so that the finding stays apart from those of the others."""
    name, sentence = f"{finding.name}: {environment}", f"{environment}: {finding.sentence}"
    return finding.model_copy(update={"name": name, "sentence": sentence})


def worst(findings: Iterable[PreflightFinding]) -> FindingStatus:
    """Of all; ok where there is none."""
    found = {finding.status for finding in findings}
    order = (FindingStatus.PROBLEM, FindingStatus.WARNING)
    return next((status for status in order if status in found), FindingStatus.OK)
