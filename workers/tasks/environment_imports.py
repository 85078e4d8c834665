"""The job `environments.import`: install an imported package, start it, play it, write its report."""

import asyncio
import contextlib
import json
import uuid
from datetime import UTC, datetime

import structlog
from sqlalchemy.orm import Session, undefer

from backend.core.events import announce, import_topic
from backend.core.session import transaction
from backend.domain.environments.import_report import ImportReport
from backend.domain.environments.packages import PackageInvalid, content_hash
from backend.domain.environments.proposals import propose
from backend.domain.text import json_text, plain_text
from backend.domain.vocabulary import RunStatus
from backend.environments.import_sources import read_repository
from backend.environments.imports import REMOTE, ImportOptions, inspect_package, store_package
from backend.environments.tables import EnvironmentImport
from backend.settings import get_settings
from workers.environments.client import EnvHost
from workers.environments.probing import play, start
from workers.tasks.execute import run_async
from workers.tasks.registry import JobContext

logger = structlog.get_logger(__name__)

LOG_SECONDS = 1.0
"""Interval between reads of the log while a virtual environment is built."""
MAX_LOG_CHARACTERS = 200_000


def run(context: JobContext) -> None:
    """Run the job. After a crash the inspection starts again."""
    import_id = uuid.UUID(str(context.arguments["import_id"]))
    url = str(context.arguments.get("url", ""))
    with transaction() as session:
        row = session.get(EnvironmentImport, import_id, with_for_update=True)
        if row is None or row.status.is_over:
            logger.info("the import is over already")
            return
        row.status = RunStatus.RUNNING
        is_to_clone = row.kind == "git"
    if is_to_clone:
        _update(import_id, phase="cloning the repository")
        options = ImportOptions(**context.arguments["wishes"])
        try:
            files = read_repository(url, str(context.arguments["reference"]), options.path)
            package, report = inspect_package(files, url.rpartition("/")[2].removesuffix(".git"), options)
        except PackageInvalid as error:
            with transaction() as session:
                row = session.get_one(EnvironmentImport, import_id)
                row.report = ImportReport(kind=row.kind, name=row.name, why_not=str(error)).model_dump(mode="json")
                _end(session, row, RunStatus.FAILED, "no package")
            return
        with transaction() as session:
            store_package(session.get_one(EnvironmentImport, import_id), package, report)
    with transaction() as session:
        row = session.get_one(EnvironmentImport, import_id, options=[undefer(EnvironmentImport.files)])
        stored_files, report = dict(row.files), ImportReport.model_validate(row.report)
    run_async(_inspect(import_id, stored_files, report))
    with transaction() as session:
        row = session.get_one(EnvironmentImport, import_id)
        row.block = row.block or (propose(report) if report.starts else "")
        if report.kind == REMOTE and row.block:
            row.block = row.block.replace("  resources:\n", f"  resources:\n    remote: {url}\n", 1)
        row.report = json.loads(json_text(report.model_dump(mode="json")))
        _end(session, row, RunStatus.COMPLETED, "inspected" if report.starts else "does not start")


def give_up(session: Session, context: JobContext, reason: str) -> None:
    """The job will not be tried again."""
    row = session.get(EnvironmentImport, uuid.UUID(str(context.arguments["import_id"])))
    if row is not None and not row.status.is_over:
        row.report = {**row.report, "why_not": reason}
        _end(session, row, RunStatus.FAILED, "failed")


async def _inspect(import_id: uuid.UUID, files: dict[str, str], report: ImportReport) -> None:
    """Start and play the package; copy the log of its installation to where people can read it."""
    settings, digest = get_settings(), content_hash(files)

    async with EnvHost(settings.envhost_address, settings.envhost_token.get_secret_value()) as host:

        async def follow_log() -> None:
            stored = ""
            while True:
                await asyncio.sleep(LOG_SECONDS)
                log, _ = await host.build_log(digest)
                if log != stored:
                    stored = log
                    await asyncio.to_thread(_update, import_id, build_log=plain_text(log[-MAX_LOG_CHARACTERS:]))

        following = asyncio.create_task(follow_log())
        try:
            _update(import_id, phase="preparing what it needs and starting it")
            await start(host, files, report)
        finally:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following
            log, _ = await host.build_log(digest)
            _update(import_id, build_log=plain_text(log[-MAX_LOG_CHARACTERS:]))
        if report.starts:
            _update(import_id, phase="playing it")
            await play(host, files, report)


def _update(import_id: uuid.UUID, **values: str) -> None:
    with transaction() as session:
        row = session.get_one(EnvironmentImport, import_id)
        for name, value in values.items():
            setattr(row, name, value)
        announce(session, import_topic(import_id))


def _end(session: Session, row: EnvironmentImport, status: RunStatus, phase: str) -> None:
    row.status, row.phase, row.ended_at = status, phase, datetime.now(UTC)
    announce(session, import_topic(row.id))
