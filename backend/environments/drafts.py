"""Edit the draft of an environment. Two tabs or two people cannot overwrite each other unnoticed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from sqlalchemy.orm import Session

from backend.core.events import announce, topic_of
from backend.domain.environments.fixtures import is_fixture, replace_column
from backend.domain.environments.packages import MANIFEST_PATH, PackageInvalid, check_files
from backend.environments.queries import get_draft
from backend.environments.scaffold import with_generated, without_generated
from backend.environments.tables import Environment, EnvironmentDraft
from backend.errors import Conflict, InvalidInput, NotFound
from backend.web.audit import audit

if TYPE_CHECKING:  # workers check versions too, and never load the web
    from backend.web.identity import Actor

AUTOSAVE_WINDOW = timedelta(minutes=10)
"""Saves of one person within this time make one entry of the audit log."""


class DraftChanged(Conflict):
    """This draft was saved after you opened it. Your text is still here: compare, then save again."""


class EnvironmentIsArchived(Conflict):
    """This environment is archived. Restore it before you change it."""


def save_draft(
    session: Session, actor: Actor | None, environment: Environment, files: Mapping[str, str], revision: int
) -> EnvironmentDraft:
    """Replace the draft's files. Raises DraftChanged if the draft has changed since `revision`."""
    draft = locked_draft(session, environment)
    refuse_unseen(draft.revision, revision)
    return write_draft(session, actor, draft, files)


def save_file(
    session: Session,
    actor: Actor | None,
    environment: Environment,
    path: str,
    text: str,
    *,
    mark: str,
    overwrite: bool = False,
) -> EnvironmentDraft:
    """Save one file. `mark`: `text_mark` of the text that the author opened, so that two tabs can edit two files.

    `overwrite`: the author saw the conflict and chose the new text.
    """
    draft = locked_draft(session, environment)
    now = with_generated(draft.files).get(path)
    if not overwrite and now != text:
        if now is None:
            raise DraftChanged(f"{path} was deleted or renamed after you opened it. Your text is still here.")
        if text_mark(now) != mark:
            raise DraftChanged(f"{path} was saved after you opened it. Your text is still here.")
    return write_draft(session, actor, draft, {**draft.files, path: text})


def add_file(session: Session, actor: Actor | None, environment: Environment, path: str) -> EnvironmentDraft:
    """Add an empty file."""
    draft = locked_draft(session, environment)
    if path in with_generated(draft.files):
        raise InvalidInput(fields={"path": f"There is a file {path} already."})
    return write_draft(session, actor, draft, {**draft.files, path: ""})


def rename_file(
    session: Session, actor: Actor | None, environment: Environment, path: str, new_path: str
) -> EnvironmentDraft:
    draft = locked_draft(session, environment)
    require_file(draft, path)
    if path == MANIFEST_PATH:
        raise InvalidInput(fields={"new_path": f"Every package has its `{MANIFEST_PATH}` under this name."})
    if new_path in draft.files:
        raise InvalidInput(fields={"new_path": f"There is a file {new_path} already."})
    files = {(new_path if known == path else known): text for known, text in draft.files.items()}
    return write_draft(session, actor, draft, files)


def delete_file(
    session: Session, actor: Actor | None, environment: Environment, path: str, *, mark: str
) -> EnvironmentDraft:
    """Delete a file. `mark`: hash of the text that the author saw; a file that changed since is kept."""
    draft = locked_draft(session, environment)
    require_file(draft, path)
    if path == MANIFEST_PATH:
        raise InvalidInput(f"Every package has a `{MANIFEST_PATH}`; it cannot be deleted.")
    if text_mark(draft.files[path]) != mark:
        raise DraftChanged(f"Nothing was deleted: {path} was saved after you opened it.")
    return write_draft(session, actor, draft, {known: text for known, text in draft.files.items() if known != path})


def replace_fixture_column(
    session: Session, actor: Actor | None, environment: Environment, name: str, heir: str, revision: int
) -> dict[str, str]:
    """Rename a column in all fixtures of the draft, or remove it. Returns the fixtures as they were, to undo it."""
    draft = locked_draft(session, environment)
    refuse_unseen(draft.revision, revision)
    changed = replace_column(draft.files, name, heir)
    before = {path: draft.files[path] for path in changed}
    files = {path: changed.get(path, text) for path, text in draft.files.items()}
    write_draft(session, actor, draft, {path: text for path, text in files.items() if text is not None})
    return before


def restore_fixtures(
    session: Session, actor: Actor | None, environment: Environment, fixtures: Mapping[str, str], revision: int
) -> EnvironmentDraft:
    """Write fixtures of the draft as they were before they were changed together."""
    draft = locked_draft(session, environment)
    refuse_unseen(draft.revision, revision)
    if others := [path for path in fixtures if not is_fixture(path)]:
        raise InvalidInput(fields={"fixtures": f"{others[0][:200]} is not a fixture."})
    return write_draft(session, actor, draft, {**draft.files, **fixtures})


def text_mark(text: str) -> str:
    """Return a short hash of a text, for a form's hidden field."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def refuse_unseen(revision: int, seen: int) -> None:
    """Raise DraftChanged if the draft has changed since it was read."""
    if revision != seen:
        raise DraftChanged(
            f"This draft was saved after you opened it: it is at revision {revision}, you saw {seen}. "
            "Nothing is lost. Review the changes, then try again."
        )


def locked_draft(session: Session, environment: Environment) -> EnvironmentDraft:
    """Lock the draft until this transaction ends, and return its current state."""
    if environment.archived_at is not None:
        raise EnvironmentIsArchived
    draft = get_draft(session, environment)
    session.refresh(draft, with_for_update=True)
    return draft


def write_draft(
    session: Session, actor: Actor | None, draft: EnvironmentDraft, files: Mapping[str, str]
) -> EnvironmentDraft:
    """Store the author's files, without files that Proctor generates with the same text."""
    with package_errors("files"):
        check_files(files)
    files = without_generated(files)
    if files != draft.files:
        now, person_id = datetime.now(UTC), actor.person_id if actor else None
        if draft.updated_by != person_id or now - draft.updated_at > AUTOSAVE_WINDOW:
            audit(session, actor, "environment.edit", "environment", draft.environment_id, revision=draft.revision + 1)
        draft.files = files
        draft.revision += 1
        draft.updated_by = person_id
        draft.updated_at = now
        session.flush()
        announce(session, topic_of("draft", draft.environment_id))
    return draft


@contextmanager
def package_errors(field: str) -> Iterator[None]:
    """Turn PackageInvalid into InvalidInput about this field."""
    try:
        yield
    except PackageInvalid as error:
        message = str(error)
        raise InvalidInput(f"{message[0].upper()}{message[1:]}.", {field: message}) from error


def require_file(draft: EnvironmentDraft, path: str) -> None:
    """Raise NotFound unless the draft has the file."""
    if path not in draft.files:
        raise NotFound(f"There is no file {path[:200]!r} in this draft; it may have been renamed or deleted.")
