"""/judges: model judges; adding, changing, trying and deleting them. Their work on a run is a tab of the run."""

import uuid
from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, Field
from sqlalchemy.orm import Session

from backend.core.events import job_topic
from backend.domain.graders.judge_prompts import FIELDS
from backend.domain.graders.judges import JudgeConfiguration, Scale, Target
from backend.domain.graders.judging_record import CanaryReport, JudgingRecord
from backend.errors import InvalidInput
from backend.graders.judges import queries, service
from backend.graders.judges.queries import JudgementFigures
from backend.graders.judges.requests import JudgeRequest, criteria_as_text
from backend.graders.judges.service import JUDGES
from backend.graders.page_parts import InquiryForm, Listed, change_form, listed, new_form
from backend.graders.queries import Try
from backend.graders.tables import Judge
from backend.runs.tables import Run
from backend.web.dependencies import Author, SessionDep, Trainer, Viewer
from backend.web.form_data import read_form
from backend.web.page import page, see_other
from backend.web.streams import live_blocks

router = APIRouter()
FORM = "graders/judges/new.html"
ASKED = "graders/judges/asked.html"


@dataclass(frozen=True, slots=True)
class JudgesPage:
    """All judges by name."""

    judges: Sequence[Listed[Judge, JudgeConfiguration, JudgementFigures]]
    rollout: str
    """To try one on."""


@dataclass(frozen=True, slots=True)
class JudgeFormPage:
    form: InquiryForm[Judge]
    configuration: JudgeConfiguration
    criteria: str
    fields: dict[str, str]
    targets: list[tuple[str, str, str]]
    scales: list[tuple[str, str, str]]


@dataclass(frozen=True, slots=True)
class JudgePage:
    """One judge and what it did."""

    judge: Judge
    configuration: JudgeConfiguration
    runs: list[tuple[Run, JudgingRecord, JudgementFigures]]
    canaries: CanaryReport | None
    """Of the newest run."""
    can_change: bool
    rollout: str
    """To try it on."""


class AskForm(BaseModel):
    rollout: Annotated[str, Field(min_length=1, max_length=300)]
    """A rollout's id or its page's address."""


_TARGETS = [
    (Target.ANSWER, "The last reply", "What the policy said in the end."),
    (Target.TRANSCRIPT, "The whole conversation", "How it got there counts too."),
    (Target.STEPS, "Each step", "A score for each reply, or for each line of the only reply: process supervision."),
]
_SCALES = [
    (Scale.BOOLEAN, "Yes or no", "1 or 0; the clearest question gets the steadiest answers."),
    (Scale.FIVE, "1 to 5", "Stored as 0, 0.25, … 1."),
    (Scale.UNIT, "0 to 1", "Any number between."),
    (Scale.RUBRIC, "Rubric", "Named criteria from 0 to 1 and their weighted mean."),
]


@router.get("/judges", response_class=HTMLResponse)
def list_judges(request: Request, session: SessionDep, _: Viewer, rollout: uuid.UUID | None = None) -> HTMLResponse:
    found = listed(session, Judge, queries.configuration_of, queries.count_judgements, JudgementFigures())
    return page(request, "graders/judges/list.html", JudgesPage(found, str(rollout or "")))


@router.get("/judges/new", response_class=HTMLResponse)
def new_judge(request: Request, session: SessionDep, _: Trainer, copy: uuid.UUID | None = None) -> HTMLResponse:
    return page(request, FORM, _form(new_form(session, Judge, copy)))


@router.post("/judges", response_class=HTMLResponse)
def add_judge(
    session: SessionDep, actor: Trainer, form: Annotated[JudgeRequest, Depends(read_form(JudgeRequest))]
) -> Response:
    judge = JUDGES.add(session, actor, form)
    return see_other(f"/judges/{judge.id}", f"The judge {judge.name} is ready. Try it on a rollout first.")


@router.get("/judges/{judge_id}", response_class=HTMLResponse)
def show_judge(
    request: Request, judge_id: uuid.UUID, session: SessionDep, _: Viewer, rollout: str = ""
) -> HTMLResponse:
    judge = queries.get_judge(session, judge_id)
    runs = queries.judged_runs(session, judge)
    context = JudgePage(
        judge,
        queries.configuration_of(judge),
        runs,
        canaries=next((record.canaries for _, record, _ in runs if record.canaries), None),
        can_change=JUDGES.can_change(session, judge),
        rollout=rollout[:300],
    )
    return page(request, "graders/judges/detail.html", context)


@router.get("/judges/{judge_id}/edit", response_class=HTMLResponse)
def edit_judge(request: Request, judge_id: uuid.UUID, session: SessionDep, _: Trainer) -> HTMLResponse:
    return page(request, FORM, _form(change_form(session, JUDGES, judge_id)))


@router.post("/judges/{judge_id}/edit", response_class=HTMLResponse)
def change_judge(
    judge_id: uuid.UUID,
    session: SessionDep,
    actor: Trainer,
    form: Annotated[JudgeRequest, Depends(read_form(JudgeRequest))],
) -> Response:
    judge = JUDGES.change(session, actor, judge_id, form)
    return see_other(f"/judges/{judge.id}", f"The judge {judge.name} was changed.")


@router.post("/judges/{judge_id}/delete", response_class=HTMLResponse)
def delete_judge(judge_id: uuid.UUID, session: SessionDep, actor: Trainer) -> Response:
    name = JUDGES.delete(session, actor, judge_id)
    return see_other("/judges", f"The judge {name} was deleted. What it said stays with the rollouts.")


@router.post("/judges/{judge_id}/ask", response_class=HTMLResponse)
def ask_judge(
    judge_id: uuid.UUID, session: SessionDep, actor: Author, form: Annotated[AskForm, Depends(read_form(AskForm))]
) -> Response:
    """Try it on one rollout; nothing of it is stored as a judgement."""
    judge = queries.get_judge(session, judge_id)
    rollout_id = queries.find_rollout(session, form.rollout)
    if rollout_id is None:
        raise InvalidInput(fields={"rollout": "There is no such rollout. Copy the address of its page."})
    job = service.ask_judge(session, actor, judge, rollout_id)
    return see_other(f"/judges/{judge.id}/asked/{job.id}")


@router.get("/judges/{judge_id}/asked/{job_id}", response_class=HTMLResponse)
def show_asked(request: Request, judge_id: uuid.UUID, job_id: uuid.UUID, session: SessionDep, _: Author) -> Response:
    return page(request, ASKED, queries.asked(session, judge_id, job_id))


@router.get("/judges/{judge_id}/asked/{job_id}/events", response_class=EventSourceResponse)
async def asked_events(
    request: Request, judge_id: uuid.UUID, job_id: uuid.UUID, _: Author
) -> AsyncIterable[ServerSentEvent]:
    """The judge's answer as soon as it is there."""

    def read(session: Session) -> Try[Judge]:
        return queries.asked(session, judge_id, job_id)

    async for event in live_blocks(request, (job_topic(job_id),), ASKED, ["judge_answer"], read):
        yield event


def _form(begun: InquiryForm[Judge]) -> JudgeFormPage:
    configuration = queries.configuration_of(begun.source) if begun.source else JudgeConfiguration()
    return JudgeFormPage(
        form=begun,
        configuration=configuration,
        criteria=criteria_as_text(configuration),
        fields=FIELDS,
        targets=[(str(key), text, note) for key, text, note in _TARGETS],
        scales=[(str(key), text, note) for key, text, note in _SCALES],
    )
