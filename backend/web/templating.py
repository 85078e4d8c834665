"""The one Jinja environment: strict, escaping, with the `ui` macros as a global that blocks see too."""

from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from backend.settings import PROJECT_ROOT, get_settings
from backend.web import svg
from backend.web.form_data import form_fields
from backend.web.formats import FILTERS
from backend.web.markdown import markdown
from backend.web.static import static_url

TEMPLATES = PROJECT_ROOT / "frontend" / "templates"


class Macros:
    """`ui.badge(…)`: every macro of `templates/ui/*.html` under one name, whichever file holds it."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._files: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        if name not in self._files:
            self._scan()
        if name not in self._files:
            raise AttributeError(f"there is no ui macro {name!r}")
        return getattr(self._environment.get_template(self._files[name]).module, name)

    def _scan(self) -> None:
        for file in sorted((TEMPLATES / "ui").glob("*.html")):
            module = self._environment.get_template(f"ui/{file.name}").module
            self._files |= {name: f"ui/{file.name}" for name in vars(module) if not name.startswith("_")}


def product_version() -> str:
    try:
        return version("proctor")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "development"


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
    }
    return environment
