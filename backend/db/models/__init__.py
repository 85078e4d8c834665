"""All tables. Models hold columns, relationships and pure properties only."""

from backend.db.models.base import Base
from backend.db.models.detectors import DetectorSetting
from backend.db.models.effort import EffortReply, EffortScore, EffortSide
from backend.db.models.environments import (
    Certificate,
    DraftTrial,
    Environment,
    EnvironmentDraft,
    EnvironmentVersion,
    NetworkGrant,
)
from backend.db.models.exports import Export
from backend.db.models.imports import EnvironmentImport
from backend.db.models.inquiries import Inquiry
from backend.db.models.judging import (
    AuditDraw,
    AuditSample,
    Fixture,
    Flag,
    Judge,
    Judgement,
    ReviewAssignment,
    ReviewItem,
    ReviewTarget,
    VerdictRecord,
)
from backend.db.models.notices import Notice, NoticeDelivery, NoticeDestination, NoticeRead
from backend.db.models.onset import OnsetSample, OnsetSearch
from backend.db.models.policies import Checkpoint, Policy
from backend.db.models.questions import Asking, Question, QuestionAnswer
from backend.db.models.rollouts import Group, Rollout, RolloutText, Task
from backend.db.models.runs import Job, MetricPoint, Run, RunLogLine, Worker
from backend.db.models.studies import StudiedCheckpoint, Study
from backend.db.models.team import ApiToken, AttemptLimit, AuditEvent, Person, SignInLink, WebSession
from backend.db.models.training import Alarm, Intervention, LessonFile, Preflight, SettingChange
from backend.db.models.views import SavedView

__all__ = [
    "Alarm",
    "ApiToken",
    "Asking",
    "AttemptLimit",
    "AuditDraw",
    "AuditEvent",
    "AuditSample",
    "Base",
    "Certificate",
    "Checkpoint",
    "DetectorSetting",
    "DraftTrial",
    "EffortReply",
    "EffortScore",
    "EffortSide",
    "Environment",
    "EnvironmentDraft",
    "EnvironmentImport",
    "EnvironmentVersion",
    "Export",
    "Fixture",
    "Flag",
    "Group",
    "Inquiry",
    "Intervention",
    "Job",
    "Judge",
    "Judgement",
    "LessonFile",
    "MetricPoint",
    "NetworkGrant",
    "Notice",
    "NoticeDelivery",
    "NoticeDestination",
    "NoticeRead",
    "OnsetSample",
    "OnsetSearch",
    "Person",
    "Policy",
    "Preflight",
    "Question",
    "QuestionAnswer",
    "ReviewAssignment",
    "ReviewItem",
    "ReviewTarget",
    "Rollout",
    "RolloutText",
    "Run",
    "RunLogLine",
    "SavedView",
    "SettingChange",
    "SignInLink",
    "StudiedCheckpoint",
    "Study",
    "Task",
    "VerdictRecord",
    "WebSession",
    "Worker",
]
