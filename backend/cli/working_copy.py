"""The state of a draft when its folder was last pulled or pushed, to detect conflicting changes."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

STATE = Path(".proctor") / "draft.json"


@dataclass(frozen=True, slots=True)
class Seen:
    """The draft as this folder saw it last."""

    environment: str
    revision: int
    marks: dict[str, str] = field(default_factory=dict)
    """A hash of each file's text, by path."""


def marks_of(files: Mapping[str, str]) -> dict[str, str]:
    return {path: hashlib.sha256(text.encode()).hexdigest()[:16] for path, text in files.items()}


def last_seen(folder: Path) -> Seen | None:
    """None in a folder that never met a draft, or whose note cannot be read."""
    try:
        return Seen(**json.loads((folder / STATE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def remember(folder: Path, environment: str, revision: int, files: Mapping[str, str]) -> None:
    path = folder / STATE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(Seen(environment, revision, marks_of(files))), indent=1), encoding="utf-8")


def conflict_of(
    seen: Seen | None, mine: Mapping[str, str], theirs: Mapping[str, str], *, revision: int, is_published: bool
) -> str:
    """Explain why a push would overwrite unseen changes; empty if it would not.

    `is_published`: the draft on the server is a version, so that nothing of it can be lost.
    """
    if mine == theirs or is_published or (seen and seen.revision == revision):
        return ""
    now = marks_of(theirs)
    if seen and seen.marks == now:
        return ""
    if seen is None:
        return (
            "the draft on the server has changes that were never published, and this folder was not pulled from it.\n"
            f"  differs: {_listed(_changed(marks_of(mine), now))}\n{_WAYS}"
        )
    by_them, by_me = _changed(seen.marks, now), _changed(seen.marks, marks_of(mine))
    return (
        f"the draft has changed: it is at revision {revision}, this folder saw {seen.revision}.\n"
        f"  changed there: {_listed(by_them)}\n  changed here:  {_listed(by_me)}\n"
        f"  in both:       {_listed(by_them & by_me)}\n{_WAYS}"
    )


_WAYS = (
    "See the difference: `proctor env diff`. Take theirs: `proctor env pull NAME --folder . --force`. "
    "Keep yours: `proctor env push --force`."
)


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> set[str]:
    return {path for path in {*before, *after} if before.get(path) != after.get(path)}


def _listed(paths: set[str]) -> str:
    return ", ".join(sorted(paths)) or "nothing"
