"""The built-in environments and templates, read as plain files. None of their code is imported."""

from dataclasses import dataclass

from backend.domain.environments.manifest import read_manifest
from backend.domain.environments.packages import MANIFEST_PATH, check_files
from backend.environments.scaffold import fill, read_folder, with_generated
from backend.settings import PROJECT_ROOT

PACKAGES = PROJECT_ROOT / "workers" / "library"
COPY = "copy:"
"""Prefix of a starting point that is another environment."""


@dataclass(frozen=True, slots=True)
class Template:
    """A starting point for a new environment."""

    name: str
    title: str
    description: str


TEMPLATES = (
    Template("single_turn", "Single turn", "One question, one answer, graded by several small reward columns."),
    Template("multi_turn_game", "Multi-turn game", "A task that continues until it is solved or the turns run out."),
    Template(
        "tool_calling", "Tool calling", "Tools with arguments, called one by one, that change a persistent state."
    ),
    Template("code_execution", "Code execution", "The policy writes a program, and hidden tests run it in a sandbox."),
    Template("process_supervised", "Process-supervised", "A problem solved line by line, with every line checked."),
    Template(
        "judged_answer", "Judged answer", "Free text: facts are counted, and a judge scores the wording as one column."
    ),
    Template("optimisation", "Optimization", "A measured quantity to improve in a few attempts."),
)


def library_names() -> list[str]:
    """Names of the built-in environments."""
    return sorted(path.parent.name for path in PACKAGES.glob(f"*/{MANIFEST_PATH}"))


def load_package(name: str) -> dict[str, str]:
    """Return a built-in environment's complete package, text by path. Raises KeyError for an unknown name."""
    if name not in library_names():
        raise KeyError(name)
    return with_generated(read_folder(PACKAGES / name))


def load_internal_package(name: str) -> dict[str, str]:
    """Return the complete package of an environment for Proctor's own use, which no policy plays."""
    return with_generated(read_folder(PACKAGES / "internal" / name))


def render_template(template: str, name: str) -> dict[str, str]:
    """Return a new environment's complete package, text by path. Raises KeyError for an unknown template."""
    if template not in {known.name for known in TEMPLATES}:
        raise KeyError(template)
    words = {
        "__NAME__": name,
        "__CLASS__": "".join(part.capitalize() for part in name.split("_")),
        "__TITLE__": name.replace("_", " ").capitalize(),
    }
    plain = read_folder(PACKAGES / "templates" / template)
    own = {fill(path, words): fill(text, words) for path, text in plain.items()}
    files = with_generated(own)
    check_files(files)
    read_manifest(files[MANIFEST_PATH])
    return files
