"""Starting points of a new environment: templates and copies of existing environments."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from backend.domain.environments.packages import MANIFEST_PATH
from backend.environments.drafts import package_of
from backend.environments.library import render_template, templates
from backend.environments.queries import find_environment, find_version, get_draft
from backend.errors import InvalidInput

COPY = "copy:"
_NAME_LINE = re.compile(r"^name:.*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """One choice of the form."""

    key: str
    title: str
    description: str


def starting_points(environments: Sequence[tuple[str, str]], asked: str = "") -> list[StartingPoint]:
    """List the templates, a copy of each of these environments (name, description), and the requested copy."""
    known = [StartingPoint(template.name, template.title, template.description) for template in templates()]
    copies = [StartingPoint(COPY + name, f"Copy of {name}", description) for name, description in environments]
    if asked.startswith(COPY) and "@" in asked:
        name, _, number = asked.removeprefix(COPY).partition("@")
        copies.insert(0, StartingPoint(asked, f"Fork of {name} v{number}", "Exactly this version's files."))
    return known + copies


def starting_files(session: Session, key: str, name: str) -> dict[str, str]:
    """The first draft of an environment of this name. Raises InvalidInput for an unknown starting point."""
    if key.startswith(COPY):
        return _copied_files(session, key.removeprefix(COPY), name)
    try:
        return render_template(key, name)
    except KeyError as error:
        raise InvalidInput(fields={"template": "There is no such template."}) from error


def _copied_files(session: Session, original: str, name: str) -> dict[str, str]:
    """`environment` copies its newest version (its draft while there is none), `environment@3` that one."""
    known, _, number = original.partition("@")
    environment = find_environment(session, known)
    if environment is None or (number and not (number.isdecimal() and len(number) < 10)):
        raise InvalidInput(fields={"template": f"There is no environment {original[:60]!r} to copy."})
    version = find_version(session, environment, int(number) if number else None, with_files=True)
    if version is None and number:
        raise InvalidInput(fields={"template": f"{known} has no version {number}."})
    files = dict(version.files if version else package_of(get_draft(session, environment)))
    files[MANIFEST_PATH] = _NAME_LINE.sub(f"name: {name}", files[MANIFEST_PATH], count=1)
    return files
