"""/rollouts/{id}: one episode whole."""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, Response

from backend.db.models import Flag, Rollout, Run, VerdictRecord
from backend.domain.vocabulary import Verdict
from backend.evaluations import rollout_queries
from backend.evaluations.token_text import TokenView, token_view
from backend.judging.evidence import read_evidence
from backend.judging.forms import VerdictForm
from backend.judging.service import judge_rollout
from backend.web.dependencies import Reviewer, SessionDep, Viewer
from backend.web.forms import read_form
from backend.web.pages import page, see_other
from backend.web.transcripts import Entry, transcript_of

router = APIRouter()


@dataclass(frozen=True, slots=True)
class RolloutPage:
    """One rollout: its conversation with what each turn earned, its group, and what was said about it."""

    rollout: Rollout
    run: Run
    entries: list[Entry]
    columns: dict[str, float]
    siblings: Sequence[Rollout]
    around: rollout_queries.Neighbours
    flags: Sequence[Flag]
    verdicts: Sequence[VerdictRecord]
    tokens: TokenView | None
    raw: str
    verdict_names: Sequence[str] = tuple(Verdict)


@router.get("/rollouts/{rollout_id}", response_class=HTMLResponse)
def show_rollout(request: Request, rollout_id: uuid.UUID, session: SessionDep, _: Viewer) -> HTMLResponse:
    rollout = rollout_queries.get_rollout(session, rollout_id)
    flags = rollout_queries.flags_of_rollout(session, rollout.id)
    context = RolloutPage(
        rollout=rollout,
        run=rollout.run,
        entries=_entries(rollout, flags),
        columns=rollout_queries.columns_of(rollout.run, rollout),
        siblings=rollout_queries.siblings(session, rollout),
        around=rollout_queries.neighbours(session, rollout),
        flags=flags,
        verdicts=rollout_queries.verdicts_of_rollout(session, rollout.id),
        tokens=token_view(session, rollout),
        raw=_raw(rollout),
    )
    return page(request, "rollouts/detail.html", context)


@router.post("/rollouts/{rollout_id}/verdicts", response_class=HTMLResponse)
def judge(
    rollout_id: uuid.UUID,
    session: SessionDep,
    actor: Reviewer,
    form: Annotated[VerdictForm, Depends(read_form(VerdictForm))],
) -> Response:
    judge_rollout(session, actor, rollout_queries.get_rollout(session, rollout_id), form)
    return see_other(f"/rollouts/{rollout_id}", "Your verdict is stored.")


def _entries(rollout: Rollout, flags: Sequence[Flag]) -> list[Entry]:
    """The conversation, with what detectors point at marked."""
    evidence = [read_evidence(flag.evidence) for flag in flags]
    return transcript_of(
        rollout.messages,
        rollout.steps,
        rollout.run.columns,
        weights=rollout.run.weights,
        quotes=[quote for each in evidence for quote in each.quotes],
        spans=[span for each in evidence for span in each.spans],
    )


def _raw(rollout: Rollout) -> str:
    whole: dict[str, Any] = {
        "opening": rollout.opening,
        "steps": rollout.steps,
        "messages": rollout.messages,
        "metrics": rollout.metrics,
    }
    return json.dumps(whole, indent=1, ensure_ascii=False)
