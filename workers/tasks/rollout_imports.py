"""The job `exchange.import`: a file of rollouts becomes a run.

The file can be anything that someone sent, so a separate process with bounded memory reads it (`python -m
workers.tasks.rollout_imports <run id>`). The whole file is checked before anything is stored.
"""

import re
import resource
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import structlog

from backend.core import artifacts
from backend.core.logs import configure_logging
from backend.core.session import transaction
from backend.domain.environments.manifest import Manifest
from backend.domain.rollouts.record import DuplicateRollout, RolloutPlacer
from backend.domain.rollouts.rollout import Rollout
from backend.domain.vocabulary import RunStatus, Split
from backend.environments.tables import EnvironmentVersion
from backend.rollouts.formats.bounds import BadFile
from backend.rollouts.formats.reading import choose_columns, open_file, survey
from backend.rollouts.imports import artifact_of, external_policy, plan_of
from backend.runs.service import begin_run, finish_run
from backend.runs.tables import Run
from workers.storage.recorder import RunRecorder
from workers.storage.runs import summarize
from workers.tasks.children import child_error, run_child
from workers.tasks.registry import JobContext

BATCH = 250
_CHILD = "workers.tasks.rollout_imports"
ADDRESS_BYTES = 6 * 1024**3
"""Limit on addresses: libraries reserve far more than they use."""
MEMORY_BYTES = 1024**3
"""Limit on writable memory, beyond what the process has when it begins to read."""
_BROKEN = {-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS}
"""How native code ends that gets no memory, or that a file broke."""
_TOO_LARGE = "The file needs more memory than an import may use. Split it, or store it as JSONL."
logger = structlog.get_logger(__name__)


class ImportStopped(Exception):
    """A person stopped the import."""


def run(context: JobContext) -> None:
    """The job's body. A repeated job stores missing rollouts."""
    run_id = context.need_run()
    with transaction() as session:
        if not begin_run(session, session.get_one(Run, run_id)):
            return
    status = run_child(_CHILD, [str(run_id)], run_id=run_id, is_fresh=True)
    if status in _BROKEN:
        _end(run_id, RunStatus.FAILED, f"{_TOO_LARGE} Nothing more was stored.")
    elif status:
        raise child_error(_CHILD, status, run_id)


def main() -> int:
    """Import the file of the run that the command line names."""
    configure_logging("import")
    bound_memory()
    import_file(uuid.UUID(sys.argv[1]))
    return 0


def bound_memory() -> None:
    """Native readers trust the sizes that a file states, so the system bounds the memory of this process."""
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())  # the others reserve far more than they use
    pa.set_cpu_count(1)
    status = Path("/proc/self/status").read_text() if sys.platform == "linux" else ""
    known = re.search(r"VmData:\s+(\d+) kB", status)
    used = int(known[1]) * 1024 if known else 0
    for kind, most in ((resource.RLIMIT_AS, ADDRESS_BYTES), (resource.RLIMIT_DATA, used + MEMORY_BYTES)):
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def import_file(run_id: uuid.UUID) -> RunStatus:
    """Import the run's file and return how the run ended."""
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="proctor-import-") as folder:
            stored = _import(run_id, Path(folder))
    except (BadFile, DuplicateRollout) as error:
        return _end(run_id, RunStatus.FAILED, f"{error}. Nothing was stored.")
    except MemoryError:
        return _end(run_id, RunStatus.FAILED, f"{_TOO_LARGE} Nothing was stored.")
    except FileNotFoundError:
        return _end(run_id, RunStatus.FAILED, "The file is gone. Send it again.")
    except ImportStopped:
        return _end(run_id, RunStatus.STOPPED, "Stopped on request.")
    status = _end(run_id, RunStatus.COMPLETED, None, stored, time.monotonic() - began)
    artifacts.delete(artifact_of(run_id))
    return status


def _import(run_id: uuid.UUID, folder: Path) -> int:
    """Survey the file, write the result to the run, and store the rollouts. Returns their number."""
    file = folder / "file"
    with artifacts.open_file(artifact_of(run_id)) as packed, file.open("wb") as unpacked:
        while part := packed.read(1 << 20):
            unpacked.write(part)
    opened = open_file(file, folder)
    recorder = RunRecorder(run_id)
    recorder.progress(phase="reading the file", done=0, total=0)
    found = survey(opened)
    with transaction() as session:
        row = session.get_one(Run, run_id, with_for_update={"key_share": True})
        version = session.get_one(EnvironmentVersion, row.version_id)
        manifest = Manifest.model_validate(version.manifest)
        source = dict(row.configuration["source"])
        request = source["asked"]
        are_shared = request["tasks"] == "shared" or (
            request["tasks"] == "auto" and version.content_hash in found.hashes
        )
        columns = choose_columns(found, manifest)
        row.columns, row.weights = list(columns.weights), list(columns.weights.values())
        if row.policy_id is None:
            row.policy_id = external_policy(session, found.main_policy).id
        source |= {
            "tool": found.tool,
            "rollouts": found.rollouts,
            "failed": found.failed,
            "failed_stored_as_zero": found.zeros,
            "columns_from": columns.source,
            "tasks": "shared" if are_shared else "foreign",
        }
        row.configuration = {**row.configuration, **plan_of(found, request["split"]), "source": source}

    def placed() -> Iterator[Rollout]:
        placer = RolloutPlacer(manifest, Split(request["split"]), are_shared)
        for number, (place, record) in enumerate(opened.records()):
            columns.fit(record)
            try:
                yield placer.place(record, number)
            except DuplicateRollout as error:
                raise BadFile(f"{place}: {error}") from error

    for _ in placed():
        pass  # check all places before anything is stored
    recorder, stored, rollouts = RunRecorder(run_id), 0, placed()  # the recorder reads the columns that were written
    while batch := list(islice(rollouts, BATCH)):
        if recorder.should_stop():
            raise ImportStopped
        recorder.store(batch)
        stored += len(batch)
        recorder.progress(phase="storing", done=stored, total=found.rollouts)
    line = f"{found.rollouts:,} rollouts of {found.tool}: {found.completed:,} completed, {found.failed:,} failed"
    if found.zeros:
        line += f"; {found.zeros:,} failed rollouts had reward 0 in the file and have none here"
    recorder.log(line)
    return stored


def _end(run_id: uuid.UUID, status: RunStatus, reason: str | None, stored: int = 0, seconds: float = 0.0) -> RunStatus:
    with transaction() as session:
        row = session.get_one(Run, run_id)
        summary = summarize(session, row, seconds=seconds, played=stored) if status is RunStatus.COMPLETED else None
        finish_run(session, row, status, summary, reason)
    logger.info("import ended", status=str(status), reason=reason)
    return status


if __name__ == "__main__":
    sys.exit(main())
