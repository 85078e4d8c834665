"""The editor of a draft: one file at a time, saved and validated while typing, and published from here."""

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from sqlalchemy.orm import Session

from backend.domain.environments.diff import diff_files
from backend.domain.environments.fixtures import undeclared_columns
from backend.domain.environments.packages import MANIFEST_PATH
from backend.environments import drafts, queries, service, trials
from backend.environments.play import rollout_of
from backend.environments.scaffold import generated_files, with_generated
from backend.environments.schemas import EditedFile, FixtureColumn, FixturesBefore
from backend.environments.tables import Environment, EnvironmentDraft
from backend.environments.validation import (
    column_sources,
    functions_without_column,
    validate_package,
)
from backend.environments.views import with_rollout_views
from backend.errors import AppError, InvalidInput
from backend.web.dependencies import Author, SessionDep
from backend.web.form_data import read_form
from backend.web.page import page, see_other, wants_block
from backend.web.transcripts import transcript_of

router = APIRouter()

_MODES = {"py": "python", "yaml": "yaml", "yml": "yaml", "md": "markdown", "json": "json", "toml": "toml"}

Edited = Annotated[EditedFile, Depends(read_form(EditedFile))]


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of the package: folders first, then files, each by name."""

    name: str
    path: str
    folders: list["Folder"] = field(default_factory=list)
    files: list[tuple[str, str]] = field(default_factory=list)
    """(name, whole path)"""


def folder_tree(paths: Iterable[str]) -> Folder:
    root = Folder("", "")
    for path in sorted(paths):
        folder, *parents = root, *path.split("/")[:-1]
        for name in parents:
            inner = next((each for each in folder.folders if each.name == name), None)
            if inner is None:
                inner = Folder(name, f"{folder.path}/{name}".lstrip("/"))
                folder.folders.append(inner)
            folder = inner
        folder.files.append((path.rpartition("/")[2], path))
    return root


@router.get("/environments/{name}/edit", response_class=HTMLResponse)
def edit_draft(
    request: Request,
    session: SessionDep,
    _: Author,
    name: str,
    file: str = MANIFEST_PATH,
    beside: uuid.UUID | None = None,
) -> HTMLResponse:
    """Show the editor. `beside`: a rollout of this environment to show next to the code."""
    environment = queries.get_environment(session, name)
    draft = queries.get_draft(session, environment)
    path = file if file in with_generated(draft.files) else MANIFEST_PATH
    return _edit_page(request, session, environment, draft, path, beside)


@router.post("/environments/{name}/edit", response_class=HTMLResponse)
def save_draft(request: Request, session: SessionDep, actor: Author, name: str, form: Edited) -> Response:
    """Save the file, and publish if requested. The typed text survives every refusal."""
    environment = queries.get_environment(session, name)
    text = form.text.replace("\r\n", "\n")
    try:
        with session.begin_nested():
            before = drafts.locked_draft(session, environment).revision
            draft = drafts.save_file(
                session, actor, environment, form.path, text, mark=form.mark, overwrite=form.then == "overwrite"
            )
    except AppError as error:
        return _refused(request, session, environment, form, text, error)
    if form.then != "publish":
        if wants_block(request):
            # other people's changes to other files are not shown until the page is reloaded
            revision = draft.revision if form.revision == before else form.revision
            typed = {"notes": form.notes, "revision": revision, "is_quiet": form.then == "autosave"}
            return _edit_page(request, session, environment, draft, form.path, form.beside, typed)
        beside = f"&beside={form.beside}" if form.beside else ""
        return see_other(f"/environments/{name}/edit?file={form.path}{beside}", "The draft is saved.")
    try:
        with session.begin_nested():
            drafts.refuse_unseen(before, form.revision)
            version = service.publish_version(
                session,
                actor,
                environment,
                notes=form.notes,
                revision=draft.revision,
                check=form.check,
                regrade=form.regrade,
            )
    except AppError as error:
        return _refused(request, session, environment, form, text, error)
    regraded = " Past rollouts are being scored again in the background." if form.regrade else ""
    notice = f"Version {version.number} is published.{regraded}"
    return see_other(f"/environments/{name}/versions/{version.number}", notice)


@router.post("/environments/{name}/edit/validate")
def validate_while_typing(session: SessionDep, _: Author, name: str, form: Edited) -> JSONResponse:
    """List the problems of the draft with this text. Nothing is stored."""
    environment = queries.get_environment(session, name)
    draft = queries.get_draft(session, environment)
    files = {**draft.files, form.path: form.text.replace("\r\n", "\n")}
    problems = []
    for problem in validate_package(files, name).problems:
        message = f"{problem.key}: {problem.message}" if problem.key else problem.message
        problems.append({"path": problem.path, "line": problem.line, "message": message, "type": "error"})
    return JSONResponse({"problems": problems})


@router.post("/environments/{name}/files")
def add_file(session: SessionDep, actor: Author, name: str, path: Annotated[str, Form(max_length=1000)]) -> Response:
    path = path.strip()
    drafts.add_file(session, actor, queries.get_environment(session, name), path)
    return see_other(f"/environments/{name}/edit?file={path}", f"{path} is created.")


@router.post("/environments/{name}/files/rename")
def rename_file(
    session: SessionDep,
    actor: Author,
    name: str,
    path: Annotated[str, Form(max_length=1000)],
    new_path: Annotated[str, Form(max_length=1000)],
) -> Response:
    new_path = new_path.strip()
    drafts.rename_file(session, actor, queries.get_environment(session, name), path, new_path)
    return see_other(f"/environments/{name}/edit?file={new_path}", f"{path} is now {new_path}.")


@router.post("/environments/{name}/files/delete")
def delete_file(
    session: SessionDep,
    actor: Author,
    name: str,
    path: Annotated[str, Form(max_length=1000)],
    mark: Annotated[str, Form()],
) -> Response:
    drafts.delete_file(session, actor, queries.get_environment(session, name), path, mark=mark)
    return see_other(f"/environments/{name}/edit", f"{path} is deleted from the draft.")


@router.post("/environments/{name}/fixtures/column")
def replace_fixture_column(
    request: Request,
    session: SessionDep,
    actor: Author,
    name: str,
    form: Annotated[FixtureColumn, Depends(read_form(FixtureColumn))],
) -> HTMLResponse:
    """Rename or remove a column in all fixtures. The page then offers to undo it."""
    environment = queries.get_environment(session, name)
    before = drafts.replace_fixture_column(session, actor, environment, form.column, form.heir, form.revision)
    count = f"{len(before)} fixture{'s' if len(before) != 1 else ''}"
    done = f"{form.column} is now {form.heir} in {count}." if form.heir else f"{form.column} was removed from {count}."
    draft = queries.get_draft(session, environment)
    told = {"mark": form.mark, "done": done, "fixtures_before": before}
    return _edit_page(request, session, environment, draft, form.path, None, told)


@router.post("/environments/{name}/fixtures/restore")
def restore_fixtures(
    request: Request,
    session: SessionDep,
    actor: Author,
    name: str,
    form: Annotated[FixturesBefore, Depends(read_form(FixturesBefore))],
) -> HTMLResponse:
    environment = queries.get_environment(session, name)
    draft = drafts.restore_fixtures(session, actor, environment, form.fixtures, form.revision)
    told = {"mark": form.mark, "done": "The fixtures are as they were."}
    return _edit_page(request, session, environment, draft, form.path, None, told)


@router.post("/environments/{name}/draft/version")
def bring_back(
    session: SessionDep,
    actor: Author,
    name: str,
    number: Annotated[int, Form(alias="version", ge=1, lt=2**31)],
    revision: Annotated[int, Form(ge=1)],
) -> Response:
    """Replace the draft with a version's files. The page asks first, because unpublished changes are lost."""
    environment = queries.get_environment(session, name)
    version = queries.get_version(session, environment, number, with_files=True)
    drafts.save_draft(session, actor, environment, version.files, revision)
    return see_other(f"/environments/{name}/edit", f"The draft is version {version.number} again.")


def _refused(
    request: Request, session: Session, environment: Environment, form: EditedFile, text: str, error: AppError
) -> Response:
    """Show the page again with the typed text and its difference from the stored text."""
    draft = queries.get_draft(session, environment)
    session.refresh(draft)
    message, conflict = error.message, None
    if isinstance(error, InvalidInput) and not isinstance(error, service.PackageHasProblems):
        message = " ".join([message, *error.fields.values()])
    if isinstance(error, drafts.DraftChanged):
        files = with_generated(draft.files)
        stored = {form.path: files[form.path]} if form.path in files else {}
        conflict = next(iter(diff_files(stored, {form.path: text})), None)
    typed: dict[str, object] = {"text": text, "mark": form.mark, "notes": form.notes}
    typed |= {"is_checking": form.check, "is_regrading": form.regrade, "message": message, "conflict": conflict}
    return _edit_page(request, session, environment, draft, form.path, form.beside, typed, status=error.status)


def _edit_page(
    request: Request,
    session: Session,
    environment: Environment,
    draft: EnvironmentDraft,
    path: str,
    rollout_id: uuid.UUID | None,
    typed: Mapping[str, object] | None = None,
    *,
    status: int = 200,
) -> HTMLResponse:
    """Show the editor. `typed`: the person's text and choices, instead of the stored ones."""
    actor, is_quiet = getattr(request.state, "actor", None), bool(typed and typed.get("is_quiet"))
    person_id = actor.person_id if actor and not is_quiet else None
    files = with_generated(draft.files)
    validation = validate_package(files, environment.name)
    manifest, stored = validation.manifest, files.get(path, "")
    versions = queries.versions_of(session, environment)
    beside: dict[str, object] | None = None  # a rollout next to the code
    if rollout_id is not None:
        rollout = rollout_of(session, environment, rollout_id, with_messages=True)
        run, task = rollout.run, rollout.group.task
        entries = transcript_of(rollout.messages, rollout.steps, run.columns, weights=run.weights)
        entries = with_rollout_views(session, rollout, entries)
        beside = {"rollout_id": rollout.id, "task": f"{task.split}/{task.index}", "reward": rollout.reward}
        beside |= {"entries": entries}
    context = {
        "environment": environment,
        "draft": draft,
        "editor": queries.person_name(session, draft.updated_by),
        "path": path,
        "text": stored,
        "mark": drafts.text_mark(stored),
        "stored_mark": drafts.text_mark(stored),
        "revision": draft.revision,  # publishing a different one is refused
        "mode": _MODES.get(path.rpartition(".")[2].lower(), "dockerfile" if path.endswith("Dockerfile") else "text"),
        "notes": "",
        "is_checking": True,
        "is_regrading": beside is not None,  # rewards are repaired next to a rollout
        "problems": validation.problems,
        "problem_counts": Counter(problem.path for problem in validation.problems),
        "manifest": manifest,
        "tree": folder_tree(draft.files),
        "generated": sorted(generated_files(draft.files)),
        "undeclared": undeclared_columns(files, manifest) if manifest else (),
        "sources": column_sources(manifest.columns, files) if manifest else (),
        "lost": functions_without_column(manifest.columns, files) if manifest else (),
        "trial": trials.trial_view(session, draft, person_id, manifest) if person_id else None,
        "versions": versions[:6],
        "newest": versions[0].number if versions else None,
        "message": "",
        "done": "",
        "fixtures_before": None,  # to undo what was done
        "conflict": None,
        "is_quiet": False,  # saved while typing: messages on the page stay
        "beside": beside,
        **(typed or {}),
    }
    return page(request, "environments/edit.html", context, block="partial", status=status)
