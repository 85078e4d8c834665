"""The fields that filters, sort orders and table columns of one run can name.

Reasoning monitors are deliberately excluded: a filter on them could select training data.
"""

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.detectors.tables import Flag
from backend.domain.graders.settings import DETECTOR_PREFIX, QUESTION_PREFIX, AnswerType, GraderKind, QuestionSettings
from backend.domain.rollouts.fields import (
    AFTER_REWARDS,
    BEFORE_REWARDS,
    GROUP_KINDS,
    Family,
    Field,
    FieldKind,
    column_field_name,
    family_field,
)
from backend.domain.training.mix import MixPart
from backend.domain.vocabulary import Phase, RolloutStatus, RunKind, StopReason, Verdict
from backend.graders.tables import Grader
from backend.rollouts.tables import Rollout, RolloutText
from backend.runs.tables import Run

SAMPLED = 200
"""Rollouts at either end of a run that are sampled for the names of metrics."""


@dataclass(frozen=True)
class FilterScope:
    """One run and the names that its rollouts can be filtered by."""

    run: Run
    judges: Mapping[str, uuid.UUID] = field(default_factory=dict)
    """Grader ids by name."""
    metrics: tuple[str, ...] = ()
    questions: Mapping[str, tuple[uuid.UUID, QuestionSettings]] = field(default_factory=dict)
    """Grader id and settings by name."""
    detectors: tuple[str, ...] = ()
    """Detectors with flags in the run."""
    hidden: frozenset[str] = frozenset()
    """Detectors whose flags do not count."""
    indexed: int = 0
    """`seq` of the last rollout in the text index."""

    @cached_property
    def fields(self) -> Mapping[str, Field]:
        """Fields of filters by name. Names of every run take precedence over reward columns, and those over metrics.

        `column.…` and `metric.…` name the others.
        """
        metrics, rewards = (
            [family_field(family, name, help=help, label=name, name=name) for name in names]
            for family, names, help in (
                (Family.METRIC, self.metrics, "unweighted metric"),
                (Family.COLUMN, self.run.columns, "reward column"),
            )
        )
        families = [replace(each, name=f"{each.family}.{each.key}") for each in (*rewards, *metrics)]
        for name in self.judges:
            families.append(family_field(Family.JUDGE, name, help="judge score, 0 to 1", label=f"judge {name}"))
        for name, (_, settings) in self.questions.items():
            is_number = settings.answers is AnswerType.FIVE
            answer = Field(
                f"{QUESTION_PREFIX}{name}",
                FieldKind.NUMBER if is_number else FieldKind.CHOICE,
                "answer to a question" + (", 1 to 5" if is_number else ""),
                () if is_number else settings.choices,
                label=name.replace("_", " "),
                changes_later=True,
                family=Family.QUESTION,
                key=name,
            )
            families.append(answer)
        own = [field for field in (*BEFORE_REWARDS, *AFTER_REWARDS) if field.is_filterable]
        own = [replace(field, choices=self.detectors) if field.name == "flag" else field for field in own]
        if mix := self.run.configuration.get("mix"):
            names = {self.run.version.environment.name, *(MixPart.model_validate(text).environment for text in mix)}
            own.append(Field("environment", FieldKind.CHOICE, "environment of the task", tuple(sorted(names))))
        return {field.name: field for field in (*metrics, *rewards, *own, *families)}

    @cached_property
    def columns(self) -> list[Field]:
        """Columns that tables of this run can show, in order."""
        names = [
            *map(column_field_name, self.run.columns),
            *(f"{Family.METRIC}.{name}" for name in self.metrics),
            *(f"{Family.JUDGE}.{name}" for name in self.judges),
            *(f"{QUESTION_PREFIX}{name}" for name in self.questions),
        ]
        scores = (self.fields[name] for name in names)
        return [field for field in (*BEFORE_REWARDS, *scores, *AFTER_REWARDS) if field.is_column]

    @property
    def sortable(self) -> list[str]:
        """Every name to sort by."""
        return ["seq", *(name for name, field in self.fields.items() if field.is_sortable)]

    def shortcuts(self, clauses: Mapping[str, str]) -> list[tuple[str, str, list[tuple[str, str]], str]]:
        """Menus next to the filter box that write one clause into the expression: field, label, options, and the option
        that `clauses`, the filter's by field, has. An option is a clause, empty for none, and its label."""

        def equal(field: str, values: Iterable[str]) -> list[tuple[str, str]]:
            return [(f"{field} = {value}", str(value).replace("_", " ")) for value in values]

        statuses = (RolloutStatus.COMPLETED, RolloutStatus.FAILED, RolloutStatus.CANCELLED)
        flags = [("has flag", "flagged"), ("not has flag", "not flagged")]
        flags += equal("flag", self.fields["flag"].choices)
        verdicts = [("has verdict", "reviewed"), ("not has verdict", "not reviewed"), *equal("verdict", Verdict)]
        menus = [
            ("status", "Status", [("", "any"), *equal("status", statuses)]),
            ("phase", "Phase", [("", "all"), *equal("phase", Phase)]),
            ("stop_reason", "Ended by", [("", "any"), *equal("stop_reason", StopReason)]),
            ("flag", "Flags", [("", "all"), *flags]),
            ("verdict", "Verdict", [("", "all"), *verdicts]),
            ("group", "Group", [("", "all"), *equal("group", GROUP_KINDS)]),
        ]
        shortcuts = []
        for name, label, options in menus:
            words = clauses.get(name, "").lower().split()
            chosen = next((option for option, _ in options if option.lower().split() == words), "")
            if name != "phase" or self.run.kind is RunKind.TRAINING:
                shortcuts.append((name, label, options, chosen))
        return shortcuts


def scope_of(session: Session, run: Run, *, for_learning: bool = False) -> FilterScope:
    """Read the scope in one statement. Metrics are sampled; detectors are those with flags in the run.

    `for_learning` hides everything that has read the policy's reasoning: flags of the reasoning monitor, answers and
    scores of graders that were shown it. Selecting training examples by it would train the policy to hide its
    reasoning (arXiv:2503.11926).
    """
    ends = [
        select(Rollout.metrics).where(Rollout.run_id == run.id).order_by(order).limit(SAMPLED).subquery()
        for order in (Rollout.seq.asc(), Rollout.seq.desc())
    ]
    metric_names = [select(func.jsonb_object_keys(end.c.metrics)) for end in ends]
    is_judge = (Grader.kind == GraderKind.JUDGE, Grader.deleted_at.is_(None))
    judges = select(func.jsonb_object_agg(Grader.name, Grader.id)).where(*is_judge)
    if for_learning:
        judges = judges.where(~func.coalesce(Grader.settings["shows_reasoning"].as_boolean(), False))
    indexed = select(func.max(RolloutText.seq)).where(RolloutText.run_id == run.id).scalar_subquery()
    row = session.execute(
        select(
            func.array(metric_names[0].union(metric_names[1]).scalar_subquery()).label("metrics"),
            func.array(select(Flag.detector).where(Flag.run_id == run.id).distinct().scalar_subquery()).label("flags"),
            judges.scalar_subquery().label("judges"),
            func.coalesce(indexed, 0).label("indexed"),
            select(func.jsonb_object_agg(Grader.name, func.jsonb_build_array(Grader.id, Grader.settings)))
            .where(Grader.deleted_at.is_(None), Grader.kind == GraderKind.QUESTION)
            .scalar_subquery()
            .label("questions"),
        )
    ).one()
    questions = {
        name: (uuid.UUID(id), QuestionSettings.model_validate(settings))
        for name, (id, settings) in (row.questions or {}).items()
    }
    hidden: frozenset[str] = frozenset()
    if for_learning:
        readers = {name for name, (_, settings) in questions.items() if settings.sees_reasoning}
        hidden = frozenset({GraderKind.MONITOR.detector(""), *(f"{DETECTOR_PREFIX}{name}" for name in readers)})
        questions = {name: question for name, question in questions.items() if name not in readers}
    return FilterScope(
        run,
        judges={name: uuid.UUID(id) for name, id in (row.judges or {}).items()},
        metrics=tuple(sorted(row.metrics)),
        questions=questions,
        detectors=tuple(name for name in sorted(row.flags) if name not in hidden),
        hidden=hidden,
        indexed=row.indexed,
    )
