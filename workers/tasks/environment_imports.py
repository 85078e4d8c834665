"""The job `environments.import`: make a foreign package ready, start it, play it, write its report."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import structlog
from sqlalchemy.orm import Session, undefer

from backend.core.events import announce, import_topic
from backend.core.session import transaction
from backend.domain.environments.import_report import ImportReport
from backend.domain.environments.packages import PackageInvalid, content_hash
from backend.domain.environments.proposals import propose
from backend.domain.text import plain_text
from backend.domain.vocabulary import RunStatus
from backend.environments.import_sources import read_repository
from backend.environments.imports import REMOTE, Wishes, take_in, understand
from backend.environments.tables import EnvironmentImport
from backend.settings import get_settings
from workers.environments.client import EnvHost
from workers.environments.probing import play, start
from workers.tasks.event_loops import run_async
from workers.tasks.registry import JobContext

logger = structlog.get_logger(__name__)

LOG_SECONDS = 1.0
"""Interval between reads of the log while a virtual environment is built."""
MAX_LOG = 200_000


def run(context: JobContext) -> None:
    """The job's body. After a crash it starts the inspection again."""
    import_id = uuid.UUID(str(context.arguments["import_id"]))
    with transaction() as session:
        row = session.get(EnvironmentImport, import_id, with_for_update=True)
        if row is None or row.status.is_over:
            logger.info("the import is over already")
            return
        row.status = RunStatus.RUNNING
        is_to_clone = row.kind == "git"
    if is_to_clone and not _clone(import_id, context.arguments):
        return
    with transaction() as session:
        row = session.get_one(EnvironmentImport, import_id, options=[undefer(EnvironmentImport.files)])
        files, report = dict(row.files), ImportReport.model_validate(row.report)
    seen = run_async(_look(import_id, files, report))
    with transaction() as session:
        row = session.get_one(EnvironmentImport, import_id)
        row.block = row.block or (propose(seen) if seen.starts else "")
        if seen.kind == REMOTE and row.block:
            row.block = _with_remote(row.block, str(context.arguments["url"]))
        row.report = _clean(seen.model_dump(mode="json"))
        _end(session, row, RunStatus.COMPLETED, "looked at" if seen.starts else "does not start")


def give_up(session: Session, context: JobContext, reason: str) -> None:
    """The job will not be tried again."""
    row = session.get(EnvironmentImport, uuid.UUID(str(context.arguments["import_id"])))
    if row is not None and not row.status.is_over:
        row.report = {**row.report, "why_not": reason}
        _end(session, row, RunStatus.FAILED, "broken off")


def _clone(import_id: uuid.UUID, arguments: dict[str, Any]) -> bool:
    """Fetch the repository and understand it; False when that ends the import."""
    _say(import_id, "cloning the repository")
    wishes = Wishes(**arguments["wishes"])
    try:
        files = read_repository(str(arguments["url"]), str(arguments["reference"]), wishes.path)
        ready, report = understand(files, str(arguments["url"]).rpartition("/")[2].removesuffix(".git"), wishes)
    except PackageInvalid as error:
        with transaction() as session:
            row = session.get_one(EnvironmentImport, import_id)
            row.report = ImportReport(kind=row.kind, name=row.name, why_not=str(error)).model_dump(mode="json")
            _end(session, row, RunStatus.FAILED, "no package")
        return False
    with transaction() as session:
        take_in(session.get_one(EnvironmentImport, import_id), ready, report)
    return True


async def _look(import_id: uuid.UUID, files: dict[str, str], report: ImportReport) -> ImportReport:
    settings = get_settings()
    async with EnvHost(settings.envhost_address, settings.envhost_token.get_secret_value()) as host:
        async with _log_shown(host, import_id, content_hash(files)):
            _say(import_id, "preparing what it needs and starting it")
            await start(host, files, report)
        if report.starts:
            _say(import_id, "playing it")
            await play(host, files, report)
    return report


@asynccontextmanager
async def _log_shown(host: EnvHost, import_id: uuid.UUID, digest: str) -> AsyncIterator[None]:
    """Meanwhile, copy pip's log to where it can be read."""
    following = asyncio.create_task(_follow_log(host, import_id, digest))
    try:
        yield
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        _store_log(import_id, (await host.build_log(digest))[0])


async def _follow_log(host: EnvHost, import_id: uuid.UUID, digest: str) -> None:
    shown = ""
    while True:
        await asyncio.sleep(LOG_SECONDS)
        log, _ = await host.build_log(digest)
        if log != shown:
            shown = log
            await asyncio.to_thread(_store_log, import_id, log)


def _store_log(import_id: uuid.UUID, log: str) -> None:
    with transaction() as session:
        session.get_one(EnvironmentImport, import_id).build_log = plain_text(log[-MAX_LOG:])
        announce(session, import_topic(import_id))


def _say(import_id: uuid.UUID, phase: str) -> None:
    with transaction() as session:
        session.get_one(EnvironmentImport, import_id).phase = phase
        announce(session, import_topic(import_id))


def _end(session: Session, row: EnvironmentImport, status: RunStatus, phase: str) -> None:
    row.status, row.phase, row.ended_at = status, phase, datetime.now(UTC)
    announce(session, import_topic(row.id))


def _with_remote(block: str, url: str) -> str:
    """The block of a server that runs elsewhere says where."""
    return block.replace("  resources:\n", f"  resources:\n    remote: {url}\n", 1)


def _clean(value: Any) -> Any:
    """Text that Postgres can store."""
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, dict):
        return {plain_text(str(key)): _clean(inner) for key, inner in value.items()}
    return [_clean(inner) for inner in value] if isinstance(value, list) else value
