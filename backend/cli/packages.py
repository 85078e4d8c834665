"""Packages on disk: read, written and begun from a template."""

from pathlib import Path

from backend.cli.output import fail
from backend.domain.environments.manifest import ManifestInvalid, read_manifest
from backend.domain.environments.packages import (
    MANIFEST_PATH,
    PackageInvalid,
    binary_as_text,
    check_files,
    file_as_bytes,
)
from backend.environments.library import render_template, templates

_IGNORED = {"__pycache__", ".git", ".venv", ".ruff_cache", ".mypy_cache", ".pytest_cache", "outputs", ".proctor"}
_IGNORED_SUFFIXES = {".pyc", ".egg-info"}


def new_package(name: str, template: str) -> dict[str, str]:
    try:
        return render_template(template, name)
    except KeyError:
        fail(f"there is no template {template!r}; there are {', '.join(known.name for known in templates())}")
    except (ManifestInvalid, PackageInvalid) as error:
        fail(f"{name!r} cannot be an environment's name: {error}")


def read_folder(folder: Path) -> dict[str, str]:
    """Read the package's files, text by path; binary files are encoded."""
    if not (folder / MANIFEST_PATH).is_file():
        fail(f"{folder} is no package: it has no {MANIFEST_PATH}")
    files = {}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if not path.is_file() or _is_ignored(inside):
            continue
        data = path.read_bytes()
        try:
            files[inside.as_posix()] = data.decode()
        except UnicodeDecodeError:
            carried, text = binary_as_text(inside.as_posix(), data)
            files[carried] = text
    try:
        check_files(files)
    except PackageInvalid as error:
        fail(str(error))
    return files


def write_folder(folder: Path, files: dict[str, str], *, force: bool = False) -> None:
    """Refuses to change a file that is there and differs, unless forced."""
    check_files(files)  # the paths stay inside, whoever sent them
    contents = dict(file_as_bytes(path, text) for path, text in files.items())
    changed = [path for path, content in contents.items() if _differs(folder / path, content)]
    if changed and not force:
        fail(f"{', '.join(changed[:5])} in {folder} would change; give --force or another --folder")
    for path, content in contents.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def name_of(files: dict[str, str]) -> str:
    try:
        return read_manifest(files[MANIFEST_PATH]).name
    except ManifestInvalid as error:
        fail(
            "\n".join(f"{MANIFEST_PATH}:{problem.line}: {problem.path} {problem.message}" for problem in error.problems)
        )


def _differs(path: Path, content: bytes) -> bool:
    return path.exists() and path.read_bytes() != content


def _is_ignored(path: Path) -> bool:
    return any(part in _IGNORED or Path(part).suffix in _IGNORED_SUFFIXES for part in path.parts)
