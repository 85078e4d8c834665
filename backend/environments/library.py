"""The environments and templates that come with Proctor, read as plain files. Nothing of them is imported."""

from dataclasses import dataclass
from pathlib import Path

from backend.domain.environments.manifest import read_manifest
from backend.domain.environments.packages import MANIFEST_PATH, check_files
from backend.environments.scaffold import fill, with_generated
from backend.settings import PROJECT_ROOT

PACKAGES = PROJECT_ROOT / "workers" / "library"
TEMPLATES = PACKAGES / "templates"

_UNREAD = {"__pycache__", ".ruff_cache", ".mypy_cache", ".pytest_cache"}


@dataclass(frozen=True, slots=True)
class Template:
    """A starting point for a new environment."""

    name: str
    title: str
    description: str


_TEMPLATES = (
    Template("single_turn", "Single turn", "One question, one answer, graded by several small reward columns."),
    Template("multi_turn_game", "Multi-turn game", "A task that goes on until it is solved or the turns are used up."),
    Template(
        "tool_calling", "Tool calling", "Tools with arguments, called one by one, that change a state which lasts."
    ),
    Template("code_execution", "Code execution", "A program is written, and hidden tests run it in a sandbox."),
    Template(
        "process_supervised", "Process-supervised", "A problem worked out line by line, and every line is checked."
    ),
    Template("judged_answer", "Judged answer", "Free words: facts are counted, the wording is judged as one column."),
    Template("optimisation", "Optimisation", "A measured quantity is made better in a few attempts."),
)


def library_names() -> list[str]:
    """Names of the built-in environments."""
    return sorted(path.parent.name for path in PACKAGES.glob(f"*/{MANIFEST_PATH}"))


def load_package(name: str) -> dict[str, str]:
    """Return a built-in environment's complete package, text by path. Raises KeyError for an unknown name."""
    if name not in library_names():
        raise KeyError(name)
    return with_generated(_read(PACKAGES / name))


def templates() -> tuple[Template, ...]:
    return _TEMPLATES


def render_template(template: str, name: str) -> dict[str, str]:
    """Return a new environment's complete package, text by path. Raises KeyError for an unknown template."""
    if template not in {known.name for known in _TEMPLATES}:
        raise KeyError(template)
    words = {
        "__NAME__": name,
        "__CLASS__": "".join(part.capitalize() for part in name.split("_")),
        "__TITLE__": name.replace("_", " ").capitalize(),
    }
    own = {fill(path, words): fill(text, words) for path, text in _read(TEMPLATES / template).items()}
    files = with_generated(own)
    check_files(files)
    read_manifest(files[MANIFEST_PATH])
    return files


def _read(folder: Path) -> dict[str, str]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not _UNREAD & set(path.parts))
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in paths}
