"""Pages of graders: the list, one grader, its form, its tries, and the tab of a run. Their forms call operations."""

import uuid
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.detectors.queries import environments
from backend.domain.graders.prompts import FIELDS
from backend.domain.graders.settings import (
    AnswerType,
    GraderKind,
    JudgeScale,
    JudgeSettings,
    JudgeTarget,
    QuestionSettings,
    read_settings,
)
from backend.errors import InvalidInput
from backend.graders import budgets, queries, service
from backend.graders.estimates import estimate_run
from backend.graders.schemas import SetBudget, TryResponse
from backend.graders.tables import Grade, Grader
from backend.policies.tables import Policy
from backend.runs.header import run_header
from backend.runs.queries import get_run
from backend.web.dependencies import Author, SessionDep, Viewer
from backend.web.page import page
from backend.web.streams import live_page

router = APIRouter()
FORM = "graders/form.html"

KINDS = [
    (GraderKind.JUDGE, "Judge", "A score from 0 to 1 with a reason."),
    (GraderKind.QUESTION, "Question", "An answer to a question in plain language, with quotes."),
    (GraderKind.MONITOR, "Reasoning monitor", "A suspicion that the policy's reasoning plans an exploit."),
    (GraderKind.CONTRAST, "Contrast", "Patterns of high-reward rollouts that are not solving the task."),
]
TARGETS = [
    (JudgeTarget.ANSWER, "Last reply", "The policy's final reply."),
    (JudgeTarget.TRANSCRIPT, "Whole conversation", "How the policy got there counts, too."),
    (JudgeTarget.STEPS, "Each step", "A score for each reply, or each line of the only reply: process supervision."),
]
SCALES = [
    (JudgeScale.BOOLEAN, "Yes or no", "1 or 0. The clearest question gets the steadiest scores."),
    (JudgeScale.FIVE, "1 to 5", "Stored as 0, 0.25, … 1."),
    (JudgeScale.UNIT, "0 to 1", "Any number in between."),
    (JudgeScale.RUBRIC, "Rubric", "Named criteria from 0 to 1 and their weighted mean."),
]
ANSWER_TYPES = [
    (AnswerType.YES_NO, "Yes or no", "The clearest question gets the steadiest answers."),
    (AnswerType.FIVE, "1 to 5", "1 is the least, 5 the most."),
    (AnswerType.LABELS, "Labels", "One of the labels below."),
]


@router.get("/graders", response_class=HTMLResponse)
def list_graders(
    request: Request, session: SessionDep, _: Viewer, kind: GraderKind | None = None, rollout: uuid.UUID | None = None
) -> HTMLResponse:
    graders = queries.list_graders(session, kind)
    figures = queries.count_grades(session, Grade.grader_id.in_([grader.id for grader in graders]))
    nothing = queries.GradeFigures()
    context = {
        "graders": [(each, read_settings(each.settings), figures.get(each.id, nothing)) for each in graders],
        "kind": kind,
        "kinds": KINDS,
        "rollout": str(rollout or ""),
    }
    return page(request, "graders/list.html", context)


@router.get("/graders/new", response_class=HTMLResponse)
def new_grader(
    request: Request, session: SessionDep, _: Author, kind: GraderKind = GraderKind.JUDGE, copy: uuid.UUID | None = None
) -> HTMLResponse:
    """An empty form, or one with the settings of a grader to copy."""
    if copy is None:
        settings: JudgeSettings | QuestionSettings = JudgeSettings()
        if kind is not GraderKind.JUDGE:  # blank: the form asks for the text
            answers = AnswerType.YES_NO if kind is GraderKind.QUESTION else AnswerType.SUSPICION
            defaults = QuestionSettings(text="…").model_dump() | {"kind": kind, "text": "", "answers": answers}
            settings = QuestionSettings.model_construct(**defaults)
        return page(request, FORM, _form(session, settings))
    source = queries.find_grader(session, str(copy))
    name = f"{source.name[:36]}_2" if source.deleted_at is None else ""
    return page(request, FORM, _form(session, read_settings(source.settings), name=name, policy_id=source.policy_id))


@router.get("/graders/{name_or_id}", response_class=HTMLResponse)
def show_grader(request: Request, name_or_id: str, session: SessionDep, _: Viewer, rollout: str = "") -> HTMLResponse:
    grader = queries.find_grader(session, name_or_id)
    runs = queries.graded_runs_by(session, grader)
    context = {
        "grader": grader,
        "settings": read_settings(grader.settings),
        "budgets": [budgets.describe_budget(session, each) for each in budgets.budgets_of(session, grader)],
        "SetBudget": SetBudget,
        "environments": environments(session),
        "runs": runs,
        "canaries": next((each.canaries for each in runs if each.canaries), None),
        "can_change": service.can_change(session, grader),
        "rollout": rollout[:300],
    }
    return page(request, "graders/detail.html", context)


@router.get("/graders/{name_or_id}/edit", response_class=HTMLResponse)
def edit_grader(request: Request, name_or_id: str, session: SessionDep, _: Author) -> HTMLResponse:
    grader = queries.find_grader(session, name_or_id)
    service.refuse_fixed(session, grader)
    context = _form(
        session, read_settings(grader.settings), name=grader.name, policy_id=grader.policy_id, grader=grader
    )
    return page(request, FORM, context)


@live_page(router, "/graders/{grader_id}/tries/{job_id}", "graders/try.html", "try_result", topics=["job:{job_id}"])
def show_try(session: SessionDep, _: Author, grader_id: uuid.UUID, job_id: uuid.UUID) -> dict[str, object]:
    grader = queries.find_grader(session, str(grader_id))
    tried = TryResponse.of_try(grader, queries.get_try(session, grader, job_id))
    return {"grader": grader, "tried": tried, "is_over": tried.is_finished}


@live_page(router, "/runs/{run_id}/graders", "graders/run.html", "grader_blocks", topics=["graders:{run_id}"])
def show_run_graders(
    session: SessionDep,
    _: Viewer,
    run_id: uuid.UUID,
    grader: uuid.UUID | None = None,
    where: str = "",
    cluster: str = "",
) -> dict[str, object]:
    """With a grader: an estimate of its work and cost."""
    run = get_run(session, run_id)
    works = sorted(queries.graded_runs_of(session, run), key=lambda each: each.is_finished)
    chosen = queries.find_grader(session, str(grader)) if grader else None
    where, cluster = where[:1000], cluster[:300]
    estimate, problem = None, ""
    if chosen is not None:
        try:
            estimate = estimate_run(session, run, chosen, where, cluster)
        except InvalidInput as error:
            problem = next(iter(error.fields.values()), error.message)
    return {
        "head": run_header(session, run),
        "run": run,
        "works": works,  # the graders of the run, unfinished ones first
        "choices": queries.list_graders(session),
        "chosen": chosen,
        "where": where,
        "cluster": cluster,
        "estimate": estimate,
        "problem": problem,  # why there is no estimate
        "is_over": all(each.is_finished for each in works),
    }


def _form(
    session: Session,
    settings: JudgeSettings | QuestionSettings,
    *,
    name: str = "",
    policy_id: uuid.UUID | None = None,
    grader: Grader | None = None,
) -> dict[str, Any]:
    """`grader`: the grader to update; None for a new one."""
    can_grade = Policy.deleted_at.is_(None), Policy.kind.in_(queries.GRADING_POLICIES)
    policies = []
    for each in session.scalars(select(Policy).where(*can_grade).order_by(Policy.kind, Policy.name)):
        model = each.configuration.get("model") or each.configuration.get("script") or each.kind
        policies.append((str(each.id), f"{each.name} ({model})"))
    criteria = settings.criteria if isinstance(settings, JudgeSettings) else ()
    return {
        "grader": grader,
        "name": name,
        "policy_id": str(policy_id or ""),
        "policies": policies,
        "settings": settings,
        "kind": settings.kind,
        "title": next(title for kind, title, _ in KINDS if kind is settings.kind),
        "kinds": KINDS,
        "fields": FIELDS,
        "criteria": "\n".join(f"{each.name}, {each.weight:g}: {each.description}" for each in criteria),
        "targets": TARGETS,
        "scales": SCALES,
        "answer_types": ANSWER_TYPES,
    }
