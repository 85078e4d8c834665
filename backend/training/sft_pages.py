"""/data/sft: training data from rollouts."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, Response, StreamingResponse

from backend.errors import InvalidInput
from backend.operations.routes import stream_download
from backend.training import sft_data
from backend.training.schemas import DownloadSft, MarkDemonstrations, SftFilter, SftPreview
from backend.web.dependencies import SessionDep, Trainer, Viewer
from backend.web.form_data import read_form
from backend.web.page import page, see_other

router = APIRouter()


@router.get("/data/sft", response_class=HTMLResponse)
def show_sft(request: Request, session: SessionDep, _: Viewer, wanted: Annotated[SftFilter, Query()]) -> HTMLResponse:
    runs = sft_data.runs_of(session, wanted) if wanted.run else []
    found: SftPreview | None = None
    errors: dict[str, str] = {}
    if runs:
        try:
            found = sft_data.preview(session, wanted)
        except InvalidInput as error:
            errors = error.fields
    context = {
        "wanted": wanted,
        "runs": runs,
        "found": found,
        "query": wanted.query(),
        "fields": wanted.fields(),
        "command": wanted.command(),
        "errors": errors,
    }
    return page(request, "training/sft_data.html", context)


@router.get("/data/sft/file", response_class=StreamingResponse)
def download_sft(
    request: Request, session: SessionDep, _: Viewer, wanted: Annotated[DownloadSft, Query()]
) -> StreamingResponse:
    return stream_download(request, sft_data.download(session, wanted, wanted.format))


@router.post("/data/sft/demonstrations", response_class=HTMLResponse)
def mark_demonstrations(
    session: SessionDep, actor: Trainer, form: Annotated[MarkDemonstrations, Depends(read_form(MarkDemonstrations))]
) -> Response:
    changed = sft_data.mark_demonstrations(session, actor, form, is_wanted=form.is_wanted)
    notice = "marked as demonstrations for the SFT warm-up" if form.is_wanted else "no longer marked"
    return see_other(f"/data/sft?{form.query()}", f"Rollouts {notice}: {changed:,}.")
