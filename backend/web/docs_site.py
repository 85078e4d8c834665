"""/docs: the documentation as static pages for signed-in members, built by `make docs`. It needs no other host."""

import re
from functools import cache
from typing import Final

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from backend.errors import NotFound
from backend.settings import PROJECT_ROOT
from backend.web.dependencies import Viewer

DOCS_FOLDER: Final = PROJECT_ROOT / "frontend" / "docs"

SECTIONS: Final = {
    "/environments/*/edit": "authoring",
    "/environments/*/red-team": "authoring#attack-the-reward",
    "/environments/*/play": "play",
    "/environments/*/judged": "safeguards#fixtures-from-verdicts",
    "/environments/*/versions/*/history": "regrading",
    "/environments/*/versions": "certificate",
    "/environments": "authoring",
    "/imports": "importing",
    "/policies": "engines",
    "/graders": "graders",
    "/evaluations": "evaluate",
    "/runs/chart": "results",
    "/runs/import": "exchange",
    "/runs/*/rollouts": "filters",
    "/runs/*/export": "exchange",
    "/runs/*/safeguards": "safeguards",
    "/runs/*/rescore": "regrading",
    "/runs/*/graders": "graders",
    "/runs/*/checkpoints": "checkpoints",
    "/runs": "evaluate",
    "/rollouts/*/before-after": "regrading",
    "/rollouts": "evaluate",
    "/rescores": "regrading",
    "/draft-scores": "regrading",
    "/studies": "studies",
    "/sweeps": "sweeps",
    "/compare": "results",
    "/leaderboards": "results",
    "/review": "review",
    "/detectors": "detectors",
    "/training/preflights": "training#preflight",
    "/training/examples": "training#training-examples",
    "/training": "training",
    "/data": "training#training-examples",
    "/checkpoints": "checkpoints",
    "/exports": "checkpoints",
    "/notices": "notifications",
    "/settings/notifications": "notifications",
    "/settings": "deploy",
    "/projects": "organize",
    "/shares": "sharing",
    "/team/review": "review#share-the-work",
    "/team": "accounts",
    "/audit": "accounts",
    "/me": "accounts",
    "/sign-in": "accounts",
    "/links": "accounts",
    "/": "get-started",
}
"""The documentation about each page and those below it. `*` is any segment, and the first match counts."""

router = APIRouter()


@cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(path.replace("*", "[^/]+") + "(/|$)"), section) for path, section in SECTIONS.items()]


def section_about(path: str) -> str:
    """Return the address of the documentation about the page at `path`."""
    page, _, anchor = next((found for pattern, found in _patterns() if pattern.match(path)), "index").partition("#")
    return f"/docs/{page}.html" + (f"#{anchor}" if anchor else "")


@router.get("/docs/{path:path}")
async def show_docs(request: Request, path: str, _: Viewer) -> Response:
    """Return a file of the site. `name` means `name.html`. Browsers revalidate every file."""
    if not DOCS_FOLDER.is_dir():
        raise NotFound("The documentation is not built. Run `make docs` in Proctor's folder.")
    site = StaticFiles(directory=DOCS_FOLDER, html=True)
    is_page = path and "." not in path.rpartition("/")[2]
    try:
        response = await site.get_response(f"{path}.html" if is_page else path or "index.html", request.scope)
    except HTTPException as error:
        raise NotFound("There is no such page in the documentation.") from error
    response.headers["Cache-Control"] = "no-cache"
    return response
