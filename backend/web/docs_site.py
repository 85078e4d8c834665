"""/docs: the documentation as static pages for signed-in members, built by `make docs`. It needs no other host."""

from typing import Final

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from backend.errors import NotFound
from backend.settings import PROJECT_ROOT
from backend.web.dependencies import Viewer

DOCS_FOLDER: Final = PROJECT_ROOT / "frontend" / "docs"

router = APIRouter()


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
