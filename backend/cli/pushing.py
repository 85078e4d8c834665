"""What `proctor env push`, `pull` and `diff` do: a folder and the draft on the server are two copies of one thing."""

from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path
from typing import Any

from backend.cli import packages, working_copy
from backend.cli.output import BAD_RESULT, fail
from backend.domain.environments.packages import name_on_disk
from proctor import Client


def push_draft(client: Client, folder: Path, *, force: bool) -> dict[str, Any]:
    """The draft as it is afterwards. Ends the command where it would overwrite what this folder never saw."""
    files = packages.read_folder(folder)
    name = packages.name_of(files)
    environment = client.find(f"/environments/{name}")
    if environment is None:
        environment = client.post("/environments", {"name": name, "files": files})
    draft: dict[str, Any] = client.get(f"/environments/{name}/draft")
    if not force:
        _refuse_conflict(folder, files, draft, is_published=environment["is_draft_published"])
    draft = client.put(f"/environments/{name}/draft", {"files": files, "revision": draft["revision"]})
    working_copy.remember(folder, name, draft["revision"], files)
    return draft


def pull_draft(client: Client, name: str, folder: Path, *, force: bool) -> dict[str, str]:
    """The draft's files, written to the folder, which remembers what it saw."""
    draft = client.get(f"/environments/{name}/draft")
    files: dict[str, str] = draft["files"]
    seen = working_copy.last_seen(folder)
    packages.write_folder(folder, files, force=force)
    if seen is not None and seen.environment == name:
        _drop_deleted(folder, seen, files)
    working_copy.remember(folder, name, draft["revision"], files)
    return files


def pull_version(client: Client, name: str, number: str, folder: Path, *, is_bare: bool, force: bool) -> dict[str, str]:
    """A version as a complete OpenEnv package; `is_bare`: only its own files."""
    address = f"/environments/{name}/versions/{number}"
    files: dict[str, str] = client.get(address if is_bare else f"{address}/export")["files"]
    packages.write_folder(folder, files, force=force)
    return files


def differences(client: Client, folder: Path) -> Iterator[str]:
    """Lines of a unified diff, from the draft on the server to the folder."""
    mine = packages.read_folder(folder)
    theirs: dict[str, str] = client.get(f"/environments/{packages.name_of(mine)}/draft")["files"]
    for path in sorted({*mine, *theirs}):
        before, after = theirs.get(path), mine.get(path)
        if before != after:
            there = "/dev/null" if before is None else f"draft/{path}"
            here = "/dev/null" if after is None else f"folder/{path}"
            yield from unified_diff((before or "").splitlines(), (after or "").splitlines(), there, here, lineterm="")


def _refuse_conflict(folder: Path, files: dict[str, str], draft: dict[str, Any], *, is_published: bool) -> None:
    seen = working_copy.last_seen(folder)
    if seen is not None and seen.environment != draft["environment"]:
        seen = None
    told = working_copy.conflict_of(
        seen, files, draft["files"], revision=draft["revision"], is_published=is_published and seen is None
    )
    if told:
        fail(told, BAD_RESULT)


def _drop_deleted(folder: Path, seen: working_copy.Seen, files: dict[str, str]) -> None:
    """Files that were deleted in the draft and not touched here go too."""
    here = working_copy.marks_of(packages.read_folder(folder))
    for path in seen.marks.keys() - files.keys():
        if here.get(path) == seen.marks[path]:
            (folder / name_on_disk(path)).unlink()
