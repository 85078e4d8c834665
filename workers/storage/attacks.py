"""An attack of the red team as its jobs read and write it: the draft, the progress, a request to cancel, the answer."""

import time
import uuid
from dataclasses import asdict, dataclass

from backend.core.queue import CANCEL, keep_answer
from backend.core.session import transaction
from backend.core.tables import Job
from backend.domain.environments.fixtures import exploit_fixture
from backend.domain.environments.manifest import Manifest, ManifestInvalid, read_manifest
from backend.domain.environments.packages import MANIFEST_PATH
from backend.domain.text import plain_text
from backend.environments.scaffold import with_generated
from backend.environments.tables import EnvironmentDraft
from workers.environments.red_team import AttackReport, Exploit

PROGRESS_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class AttackedDraft:
    files: dict[str, str]
    manifest: Manifest
    revision: int


class AttackRecorder:
    """Records one job of an attack in its row. Waiting pages are announced at most once a second."""

    def __init__(self, job_id: uuid.UUID) -> None:
        self.job_id = job_id
        self._reported_at = self._asked_at = 0.0
        self._is_canceled = False

    def read_draft(self, environment_id: str) -> AttackedDraft | None:
        """Return the draft as it is saved; None if its manifest cannot be read or the job was canceled in the queue."""
        with transaction() as session:
            if (session.get_one(Job, self.job_id).arguments.get("answer")) is not None:
                return None
            draft = session.get_one(EnvironmentDraft, uuid.UUID(environment_id))
            try:
                manifest = read_manifest(draft.files.get(MANIFEST_PATH, ""))
                return AttackedDraft(with_generated(draft.files), manifest, draft.revision)
            except ManifestInvalid as error:
                keep_answer(session, self.job_id, {"error": f"{MANIFEST_PATH}: {error}"})
                return None

    def progress(self, phase: str, share: float, exploits: list[Exploit]) -> None:
        if time.monotonic() - self._reported_at < PROGRESS_SECONDS:
            return
        self._reported_at = time.monotonic()
        self._keep({"phase": plain_text(phase)[:200], "share": share, "exploits": len(exploits)}, name="progress")

    def is_canceled(self) -> bool:
        """Whether someone canceled the attack; read at most once a second."""
        if not self._is_canceled and time.monotonic() - self._asked_at >= PROGRESS_SECONDS:
            self._asked_at = time.monotonic()
            with transaction() as session:
                job = session.get(Job, self.job_id)
                self._is_canceled = job is None or bool(job.arguments.get(CANCEL))
        return self._is_canceled

    def finish(self, report: AttackReport, revision: int) -> None:
        exploits = [
            {**asdict(each), "replies": list(each.replies), "fixture": exploit_fixture(each.attack, each.replies)}
            for each in report.exploits
        ]
        notes = [*report.notes, "Canceled: these are the exploits until then."] if self._is_canceled else report.notes
        self._keep({"draft_revision": revision, "exploits": exploits, "notes": notes, "error": ""})

    def fail(self, reason: str) -> None:
        self._keep({"error": plain_text(reason)[:2000]})

    def _keep(self, values: dict[str, object], name: str = "answer") -> None:
        with transaction() as session:
            keep_answer(session, self.job_id, values, name=name)
