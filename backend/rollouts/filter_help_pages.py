"""/help/filters: the reference of the filter language, as it stands in the documentation."""

from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from backend.errors import NotFound
from backend.settings import PROJECT_ROOT
from backend.web.dependencies import Viewer
from backend.web.page import page

router = APIRouter()
REFERENCE = PROJECT_ROOT / "docs" / "filters.md"


@dataclass(frozen=True, slots=True)
class HelpPage:
    """The reference as Markdown."""

    reference: str


@router.get("/help/filters", response_class=HTMLResponse)
def show_filter_help(request: Request, _: Viewer) -> HTMLResponse:
    if not REFERENCE.is_file():
        raise NotFound("The documentation is not installed here; it is docs/filters.md of the sources.")
    return page(request, "rollouts/help.html", HelpPage(REFERENCE.read_text()))
