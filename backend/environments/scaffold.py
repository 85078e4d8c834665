"""Generate the files that are the same in every package of Proctor's own layout. They are not stored or edited.

A package has this layout if `server/NAME_environment.py` defines `ClassEnvironment` on top of `server/rewards.py`, and
`models.py` defines `ClassAction` and `ClassObservation`; `Class` is the environment's name in CamelCase. What such a
package lacks of the standard OpenEnv files is generated, so an author replaces a generated file by adding it. Drafts
store only the author's files. Versions are complete: publishing generates the rest once, and their content hash covers
all of it. Packages with another layout stay exactly as they are.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from backend.domain.environments.packages import MANIFEST_PATH, PackageInvalid, read_toml
from backend.settings import PROJECT_ROOT

SCAFFOLD = PROJECT_ROOT / "workers" / "library" / "scaffold"
_CACHES = {"__pycache__", ".ruff_cache", ".mypy_cache", ".pytest_cache"}
RUNTIME = "openenv>=0.10,<0.11"
REQUIREMENTS = "server/requirements.txt"
APP, SHARED_MODULES = "server/app.py", ("rewards", "submissions", "inspection")
"""A shared module is generated if the package's server imports it."""
_NAME = re.compile(r"^name:[ \t]*[\"']?([a-z][a-z0-9_]{0,63})[\"']?[ \t]*(?:#.*)?$", re.MULTILINE)
_STANDARD_APP = re.compile(r"^app:[ \t]*[\"']?server\.app:app[\"']?[ \t]*(?:#.*)?$", re.MULTILINE)
_CLASS = re.compile(r"^class (\w+)", re.MULTILINE)
_MODELS = ("Action", "Observation")
_SHARED_IMPORT = re.compile(rf"^[ \t]*from \.({'|'.join(SHARED_MODULES)}) import ", re.MULTILINE)


def generated_files(files: Mapping[str, str]) -> dict[str, str]:
    """Return the standard files that the package lacks, text by path."""
    return {path: text for path, text in _standard_files(files) if path not in files}


def with_generated(files: Mapping[str, str]) -> dict[str, str]:
    """Return the complete package: the author's files and the generated ones."""
    return {**generated_files(files), **files}


def without_generated(files: Mapping[str, str]) -> dict[str, str]:
    """Return the author's files, without files that `with_generated` restores with exactly this text."""
    standard = dict(_standard_files(files))
    own = {path: text for path, text in files.items() if standard.get(path) != text}
    return own if with_generated(own) == with_generated(files) else dict(files)


def requirements_of(pyproject: str) -> str:
    """Return the `requirements.txt` for a package: its declared dependencies, and the runtime if it is missing."""
    try:
        project = read_toml(pyproject).get("project")
    except PackageInvalid:
        project = None
    written = project.get("dependencies") if isinstance(project, dict) else None
    needed = [line for line in written if isinstance(line, str)] if isinstance(written, list) else []
    if not any(re.match(r"openenv(-core)?\b", line) for line in needed):
        needed.append(RUNTIME)
    return "\n".join(needed) + "\n"


def _standard_files(files: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Give every standard file of the package's layout, whether the package has it or not."""
    manifest = files.get(MANIFEST_PATH, "")
    name = _NAME.search(manifest)
    if name is None:
        return
    class_name = "".join(part.capitalize() for part in name[1].split("_"))
    environment, models = (
        set(_CLASS.findall(files.get(path, ""))) for path in (f"server/{name[1]}_environment.py", "models.py")
    )
    is_standard = f"{class_name}Environment" in environment and {f"{class_name}{kind}" for kind in _MODELS} <= models
    server = [text for path, text in files.items() if path.startswith("server/") and path.endswith(".py")]
    imported = {f"server/{match}.py" for text in server for match in _SHARED_IMPORT.findall(text)}
    if not is_standard or "server/rewards.py" not in imported:
        return
    words = {"__NAME__": name[1], "__CLASS__": class_name, "__TITLE__": name[1].replace("_", " ").capitalize()}
    optional = {f"server/{module}.py" for module in SHARED_MODULES} - imported
    if not _STANDARD_APP.search(manifest):
        optional.add(APP)
    standard = {path: fill(text, words) for path, text in _templates(SCAFFOLD).items() if path not in optional}
    yield from standard.items()
    yield REQUIREMENTS, requirements_of(files.get("pyproject.toml") or standard["pyproject.toml"])


def fill(text: str, words: Mapping[str, str]) -> str:
    """Replace the placeholders of a template."""
    for placeholder, word in words.items():
        text = text.replace(placeholder, word)
    return text


def read_folder(folder: Path) -> dict[str, str]:
    """Return the files of the library below a folder, text by path, without the caches of tools."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not _CACHES & set(path.parts))
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in paths}


_templates = lru_cache(maxsize=1)(read_folder)
