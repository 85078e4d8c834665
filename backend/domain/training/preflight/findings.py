"""Findings of a pre-flight: one sentence each, with a status and advice."""

from collections.abc import Iterable
from enum import StrEnum

from pydantic import BaseModel, Field


class FindingStatus(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """The run can start, but consider the advice."""
    PROBLEM = "problem"
    """The run would fail or learn nothing."""


class PreflightFinding(BaseModel, extra="ignore", frozen=True):
    """The result of one check."""

    name: str
    """`batch`, `memory`, `base_success`, …"""
    status: FindingStatus
    sentence: str
    advice: str = ""
    evidence: dict[str, object] = Field(default_factory=dict)


def ok(name: str, sentence: str, **evidence: object) -> PreflightFinding:
    return PreflightFinding(name=name, status=FindingStatus.OK, sentence=sentence, evidence=evidence)


def warning(name: str, sentence: str, advice: str = "", **evidence: object) -> PreflightFinding:
    status = FindingStatus.WARNING
    return PreflightFinding(name=name, status=status, sentence=sentence, advice=advice, evidence=evidence)


def problem(name: str, sentence: str, advice: str = "", **evidence: object) -> PreflightFinding:
    status = FindingStatus.PROBLEM
    return PreflightFinding(name=name, status=status, sentence=sentence, advice=advice, evidence=evidence)


def of_environment(finding: PreflightFinding, environment: str) -> PreflightFinding:
    """The finding with the name of its environment, to keep those of a mix apart."""
    name, sentence = f"{finding.name}: {environment}", f"{environment}: {finding.sentence}"
    return finding.model_copy(update={"name": name, "sentence": sentence})


def worst(findings: Iterable[PreflightFinding]) -> FindingStatus:
    """The most severe status; ok if there are no findings."""
    found = {finding.status for finding in findings}
    order = (FindingStatus.PROBLEM, FindingStatus.WARNING)
    return next((status for status in order if status in found), FindingStatus.OK)
