"""Files of `frontend/static`: cached for ever under a URL that carries their content's hash."""

import hashlib
from functools import lru_cache
from typing import Final

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from backend.settings import PROJECT_ROOT

STATIC_FOLDER: Final = PROJECT_ROOT / "frontend" / "static"
_FOR_EVER = "public, max-age=31536000, immutable"


class Static(StaticFiles):
    """Named with its hash or version a file may be kept; named without, it is asked for again."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        is_versioned = path.startswith("vendor/") or b"v=" in scope.get("query_string", b"")
        response.headers["Cache-Control"] = _FOR_EVER if is_versioned and response.status_code < 400 else "no-cache"
        return response


def static_url(path: str) -> str:
    """`/static/css/base.css?v=…`: the template function `static`."""
    file = STATIC_FOLDER / path
    return f"/static/{path}?v={_digest(path, file.stat().st_mtime_ns)}"


@lru_cache(maxsize=256)
def _digest(path: str, modified_ns: int) -> str:
    return hashlib.sha256((STATIC_FOLDER / path).read_bytes()).hexdigest()[:10]
