"""The Jinja environment: strict and escaping, with the `ui` macros, Markdown and the addresses of static files."""

import hashlib
import re
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from backend.settings import PROJECT_ROOT, get_settings
from backend.web import docs_links, svg
from backend.web.form_data import form_fields
from backend.web.formats import FILTERS, PRECISION

TEMPLATES = PROJECT_ROOT / "frontend" / "templates"
STATIC_FOLDER: Final = PROJECT_ROOT / "frontend" / "static"
MAX_MARKDOWN = 200_000
"""Characters. A longer text is cut."""
_FRONT_MATTER = re.compile(r"\A---\n.*?\n---\s*\n", re.DOTALL)
"""Metadata of a README for model hubs."""


@dataclass
class Macros:
    """`ui.badge(…)`: every macro of `templates/ui/*.html` under one name, whichever file holds it."""

    _environment: Environment
    _files: dict[str, str] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        if name not in self._files:
            for file in sorted((TEMPLATES / "ui").glob("*.html")):
                module = self._environment.get_template(f"ui/{file.name}").module
                self._files |= {macro: f"ui/{file.name}" for macro in vars(module) if not macro.startswith("_")}
        if name not in self._files:
            raise AttributeError(f"there is no ui macro {name!r}")
        return getattr(self._environment.get_template(self._files[name]).module, name)


@lru_cache(maxsize=1)
def templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=get_settings().stage == "development",
    )
    environment.filters |= FILTERS | {"markdown": markdown}
    environment.globals |= {
        "ui": Macros(environment),
        "form_fields": form_fields,
        "svg": svg,
        "static": static_url,
        "version": product_version(),
        "precision": PRECISION,
        "docs": docs_links.docs_address,
        "docs_of_setting": docs_links.section_about_setting,
        "docs_of_failure": docs_links.section_about_failure,
    }
    return environment


def product_version() -> str:
    try:
        return version("proctor")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "development"


# html=False escapes raw HTML; an image would be a request that leaves the machine
_markdown = MarkdownIt("commonmark", {"html": False, "maxNesting": 20}).enable("table").disable("image")
_markdown.validateLink = lambda url: url.startswith(("https://", "http://", "#"))  # type: ignore[method-assign]


def markdown(text: str) -> Markup:
    """Render Markdown of authors and model cards as safe HTML: no raw HTML, no images, web links only."""
    return Markup(_markdown.render(_FRONT_MATTER.sub("", text[:MAX_MARKDOWN], count=1)))


class Static(StaticFiles):
    """Files of `frontend/static`. An address with a version or hash is cached forever, any other is revalidated."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        is_versioned = path.startswith("vendor/") or b"v=" in scope.get("query_string", b"")
        is_cached = is_versioned and response.status_code < 400
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable" if is_cached else "no-cache"
        return response


def static_url(path: str) -> str:
    """Return the address of a static file with the hash of its content: `/static/css/base.css?v=…`."""
    return f"/static/{path}?v={_digest(path, (STATIC_FOLDER / path).stat().st_mtime_ns)}"


@lru_cache(maxsize=256)
def _digest(path: str, modified_ns: int) -> str:
    return hashlib.sha256((STATIC_FOLDER / path).read_bytes()).hexdigest()[:10]
