"""Where a pre-flight's worker writes: its row, seen live on its page."""

import time
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from backend.core.events import announce, preflight_topic
from backend.core.session import transaction
from backend.domain.text import plain_text
from backend.domain.training.preflight.findings import PreflightFinding
from backend.domain.vocabulary import PreflightStatus
from backend.training.tables import Preflight
from workers.storage.recorder import PROGRESS_SECONDS, RunRecorder


class Notebook(RunRecorder):
    """A run's recorder for what is no run yet: progress goes to the pre-flight, rollouts and curves go nowhere."""

    def __init__(self, preflight_id: uuid.UUID) -> None:
        self.preflight_id = preflight_id
        self._written_at = 0.0

    def progress(
        self,
        *,
        phase: str,
        done: int,
        total: int,
        message: str = "",
        concurrency: int = 0,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        now = time.monotonic()
        if now - self._written_at < PROGRESS_SECONDS and done < total:
            return
        self._written_at = now
        self._write(progress={"phase": phase, "done": done, "total": total, "message": plain_text(message)[:500]})

    def find(self, *found: PreflightFinding) -> None:
        """Findings of a name that is there already take its place."""
        with transaction() as session:
            row = session.get_one(Preflight, self.preflight_id, with_for_update=True)
            known = {finding["name"]: finding for finding in row.findings}
            known |= {finding.name: finding.model_dump(mode="json") for finding in found}
            row.findings = list(known.values())
            announce(session, preflight_topic(self.preflight_id))

    def end(self, status: PreflightStatus, reason: str | None = None) -> None:
        told = plain_text(reason)[:2000] if reason else None
        self._write(status=status, reason=told, ended_at=datetime.now(UTC))

    def log(self, message: str, level: str = "info") -> None:
        """What a run would log is in the findings."""

    def should_stop(self) -> bool:
        return False

    def _write(self, **fields: object) -> None:
        with transaction() as session:
            row = session.get_one(Preflight, self.preflight_id)
            for name, value in fields.items():
                setattr(row, name, value)
            announce(session, preflight_topic(self.preflight_id))
