"""`proctor env init`, `push`, `pull` and `diff`: a package's folder as a working copy of the draft on the server.

The folder remembers the draft that it last saw, so that a push does not overwrite unseen changes.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from difflib import unified_diff
from pathlib import Path

import watchfiles

from backend.cli.output import BAD_RESULT, fail
from backend.domain.environments.manifest import ManifestInvalid, read_manifest
from backend.domain.environments.packages import (
    BADGE_PATH,
    BINARY_SUFFIX,
    CERTIFICATE_PATH,
    MANIFEST_PATH,
    PackageInvalid,
    binary_as_text,
    check_files,
    file_as_bytes,
)
from backend.domain.text import JsonObject
from proctor import Client

STATE = Path(".proctor") / "draft.json"
_IGNORED = {"__pycache__", ".git", ".venv", ".ruff_cache", ".mypy_cache", ".pytest_cache", "outputs", ".proctor"}
_IGNORED_SUFFIXES = {".pyc", ".egg-info"}
_OPTIONS = (
    "See the difference: `proctor env diff`. Take theirs: `proctor env pull NAME --folder . --force`. "
    "Keep yours: `proctor env push --force`."
)


@dataclass(frozen=True, slots=True)
class SeenDraft:
    """The draft that this folder last saw."""

    environment: str
    revision: int
    marks: dict[str, str] = field(default_factory=dict)
    """A hash of each file's text, by path."""


def read_folder(folder: Path) -> dict[str, str]:
    """Read the package's files, text by path; binary files are encoded."""
    if not (folder / MANIFEST_PATH).is_file():
        fail(f"{folder} is not a package: it has no {MANIFEST_PATH}")
    files = {}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if not path.is_file() or is_ignored(inside) or inside.as_posix() in {CERTIFICATE_PATH, BADGE_PATH}:
            continue  # a certificate holds for what was exported, and would change the content that it certifies
        data = path.read_bytes()
        try:
            files[inside.as_posix()] = data.decode()
        except UnicodeDecodeError:
            name, text = binary_as_text(inside.as_posix(), data)
            files[name] = text
    try:
        check_files(files)
    except PackageInvalid as error:
        fail(str(error))
    return files


def is_ignored(inside: Path) -> bool:
    """Return whether a path in a folder belongs to tools and not to the package."""
    return any(part in _IGNORED or Path(part).suffix in _IGNORED_SUFFIXES for part in inside.parts)


def changes(folder: Path) -> Iterator[None]:
    """Yield at once, and after each change of the package's files; until Ctrl-C, or until it has no manifest."""
    root = folder.resolve()
    batches = watchfiles.watch(
        root,
        watch_filter=lambda _, path: not is_ignored(Path(path).relative_to(root)),
        debounce=500,
        rust_timeout=500,
        yield_on_timeout=True,
        raise_interrupt=False,
    )
    next(batches)  # from here on, no change is lost
    yield
    for changed in batches:
        if changed and not (root / MANIFEST_PATH).is_file():
            return
        if changed:
            yield


def write_folder(folder: Path, files: dict[str, str], *, force: bool = False) -> None:
    """Write the files. Refuses to change an existing file unless forced."""
    check_files(files)  # no path leads outside, whoever sent it
    contents = {folder / path: content for path, content in (file_as_bytes(*item) for item in files.items())}
    changed = [path for path, content in contents.items() if path.exists() and path.read_bytes() != content]
    if changed and not force:
        names = ", ".join(path.relative_to(folder).as_posix() for path in changed[:5])
        fail(f"{names} in {folder} would change; give --force or another --folder")
    for path, content in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def push_draft(client: Client, folder: Path, *, force: bool) -> JsonObject:
    """Replace the draft, and return it. Ends the command if that would overwrite changes that this folder never saw."""
    files = read_folder(folder)
    name = _name_of(files)
    environment = client.find(f"/environments/{name}")
    if environment is None:
        environment = client.post("/environments", {"name": name, "files": files})
    draft: JsonObject = client.get(f"/environments/{name}/draft")
    if not force:
        seen = last_seen(folder)
        if seen is not None and seen.environment != name:
            seen = None
        is_published = environment["is_draft_published"] and seen is None
        conflict = conflict_of(seen, files, draft["files"], revision=draft["revision"], is_published=is_published)
        if conflict:
            fail(conflict, BAD_RESULT)
    draft = client.put(f"/environments/{name}/draft", {"files": files, "revision": draft["revision"]})
    remember(folder, name, draft["revision"], files)
    return draft


def pull_draft(client: Client, name: str, folder: Path, *, force: bool) -> dict[str, str]:
    """Write the draft's files to the folder. Files that were deleted in the draft and not changed here are deleted."""
    draft = client.get(f"/environments/{name}/draft")
    files: dict[str, str] = draft["files"]
    seen = last_seen(folder)
    write_folder(folder, files, force=force)
    if seen is not None and seen.environment == name:
        here = marks_of(read_folder(folder))
        for path in seen.marks.keys() - files.keys():
            if here.get(path) == seen.marks[path]:
                (folder / path.removesuffix(BINARY_SUFFIX)).unlink()
    remember(folder, name, draft["revision"], files)
    return files


def differences(client: Client, folder: Path) -> Iterator[str]:
    """Yield lines of a unified diff, from the draft on the server to the folder."""
    mine = read_folder(folder)
    theirs: dict[str, str] = client.get(f"/environments/{_name_of(mine)}/draft")["files"]
    for path in sorted({*mine, *theirs}):
        before, after = theirs.get(path), mine.get(path)
        if before != after:
            there = "/dev/null" if before is None else f"draft/{path}"
            here = "/dev/null" if after is None else f"folder/{path}"
            yield from unified_diff((before or "").splitlines(), (after or "").splitlines(), there, here, lineterm="")


def _name_of(files: dict[str, str]) -> str:
    try:
        return read_manifest(files[MANIFEST_PATH]).name
    except ManifestInvalid as error:
        fail("\n".join(f"{each.path}:{each.line}: {each.key} {each.message}" for each in error.problems))


def marks_of(files: Mapping[str, str]) -> dict[str, str]:
    return {path: hashlib.sha256(text.encode()).hexdigest()[:16] for path, text in files.items()}


def last_seen(folder: Path) -> SeenDraft | None:
    """Return the draft that the folder last saw; None if there is no valid record."""
    try:
        return SeenDraft(**json.loads((folder / STATE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def remember(folder: Path, environment: str, revision: int, files: Mapping[str, str]) -> None:
    path = folder / STATE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(SeenDraft(environment, revision, marks_of(files))), indent=1), encoding="utf-8")


def conflict_of(
    seen: SeenDraft | None, mine: Mapping[str, str], theirs: Mapping[str, str], *, revision: int, is_published: bool
) -> str:
    """Explain why a push would overwrite unseen changes; empty if it would not.

    `is_published`: the draft on the server is a version, so nothing can be lost.
    """
    if mine == theirs or is_published or (seen and seen.revision == revision):
        return ""
    now = marks_of(theirs)
    if seen and seen.marks == now:
        return ""
    if seen is None:
        return (
            "the draft on the server has changes that were never published, and this folder was not pulled from it.\n"
            f"  differs: {_listed(_changed(marks_of(mine), now))}\n{_OPTIONS}"
        )
    by_them, by_me = _changed(seen.marks, now), _changed(seen.marks, marks_of(mine))
    return (
        f"the draft has changed: it is at revision {revision}, this folder saw {seen.revision}.\n"
        f"  changed there: {_listed(by_them)}\n  changed here:  {_listed(by_me)}\n"
        f"  in both:       {_listed(by_them & by_me)}\n{_OPTIONS}"
    )


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> set[str]:
    return {path for path in {*before, *after} if before.get(path) != after.get(path)}


def _listed(paths: set[str]) -> str:
    return ", ".join(sorted(paths)) or "nothing"
