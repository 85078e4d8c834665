"""The write path of rollouts beside a bare COPY of the same rows into a table without indexes."""

import time
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
from rich.console import Console
from sqlalchemy import text
from sqlalchemy.orm import Session

from backend.core.session import transaction
from backend.domain.environments.manifest import Manifest
from backend.domain.rollouts.rollout import Rollout, Step, task_of
from backend.domain.vocabulary import Phase, RolloutStatus, RunKind, RunStatus, Split, StopReason
from backend.environments.tables import EnvironmentVersion
from backend.runs.tables import Run
from workers.storage.recorder import RunRecorder
from workers.storage.rollouts import COLUMNS, row_of

ROWS = 5000
BATCH = 500


def report_storage(console: Console, version: EnvironmentVersion) -> None:
    manifest = Manifest.model_validate(version.manifest)
    rollouts = [sample_rollout(manifest, index) for index in range(ROWS)]
    run_id = _run(version, manifest)
    recorder = RunRecorder(run_id)
    stored = _rate(lambda batch: recorder.store(batch), rollouts)
    bare = _bare(run_id, rollouts, manifest.column_names)
    console.print(f"write path {stored:,.0f} rollouts/s, bare COPY of the same rows {bare:,.0f}/s (batches of {BATCH})")


def _bare(run_id: uuid.UUID, rollouts: list[Rollout], columns: list[str]) -> float:
    """As fast as it goes: rows encoded beforehand, no index, no lock, no look for what is there."""
    with transaction() as session:
        session.execute(text(f"CREATE TABLE bare AS SELECT {', '.join(COLUMNS)} FROM rollouts LIMIT 0"))
    rows = [row_of(run_id, rollout, columns) for rollout in rollouts]

    def copy(batch: list[list[object]]) -> None:
        with transaction() as session, _cursor(session) as cursor, cursor.copy("COPY bare FROM STDIN") as target:
            for row in batch:
                target.write_row(row)

    return _rate(copy, rows)


def _rate(write: Callable[[list[Any]], object], rows: list[Any]) -> float:
    began = time.perf_counter()
    for first in range(0, len(rows), BATCH):
        write(rows[first : first + BATCH])
    return len(rows) / (time.perf_counter() - began)


def _cursor(session: Session) -> psycopg.Cursor[tuple[object, ...]]:
    driver = session.connection().connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    return driver.cursor()


def _run(version: EnvironmentVersion, manifest: Manifest) -> uuid.UUID:
    weights = [column.weight for column in manifest.columns]
    run = Run(
        kind=RunKind.EVALUATION,
        status=RunStatus.RUNNING,
        name="storage",
        version_id=version.id,
        columns=manifest.column_names,
        weights=weights,
    )
    with transaction() as session:
        session.add(run)
    return run.id


def sample_rollout(manifest: Manifest, index: int) -> Rollout:
    """Four turns of about 2 KB in all."""
    observation = {"board": "XO.......", "message": "1 2 3\n4 X 6\n7 8 O\nYour move?", "legal_moves": [1, 2, 3, 4, 6]}
    step = Step("<move>5</move>", {"cell": 5}, observation, str(observation["message"]), {"win": 0.0}, False)
    messages = [{"role": "user", "content": step.text}, {"role": "assistant", "content": step.reply}] * 4
    return Rollout(
        task_of(manifest, Split.TRAIN, index),
        Phase.EVALUATION,
        index,
        0,
        RolloutStatus.COMPLETED,
        StopReason.DONE,
        reward=0.2,
        columns={"win": 0.0, "format": 1.0},
        opening=observation,
        steps=[step] * 4,
        messages=messages,
    )
