"""All tables. Models hold columns, relationships and pure properties only."""

from backend.db.models.base import Base
from backend.db.models.environments import Certificate, DraftTrial, Environment, EnvironmentDraft, EnvironmentVersion
from backend.db.models.exports import Export
from backend.db.models.imports import EnvironmentImport
from backend.db.models.judging import Fixture, Flag, VerdictRecord
from backend.db.models.policies import Checkpoint, Policy
from backend.db.models.rollouts import Group, Rollout, Task
from backend.db.models.runs import Job, MetricPoint, Run, RunLogLine, Worker
from backend.db.models.team import ApiToken, AuditEvent, Person, SignInAttempt, SignInLink, WebSession

__all__ = [
    "ApiToken",
    "AuditEvent",
    "Base",
    "Certificate",
    "Checkpoint",
    "DraftTrial",
    "Environment",
    "EnvironmentDraft",
    "EnvironmentImport",
    "EnvironmentVersion",
    "Export",
    "Fixture",
    "Flag",
    "Group",
    "Job",
    "MetricPoint",
    "Person",
    "Policy",
    "Rollout",
    "Run",
    "RunLogLine",
    "SignInAttempt",
    "SignInLink",
    "Task",
    "VerdictRecord",
    "WebSession",
    "Worker",
]
