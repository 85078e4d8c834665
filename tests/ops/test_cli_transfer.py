"""`proctor export --transfer`: the request, the tables, and refusals."""

from datetime import UTC, datetime

import pytest
from sqlalchemy import select

from backend.checkpoints.tables import Export
from backend.core.session import transaction
from backend.domain.vocabulary import ExportStatus
from tests.checkpoints.transfer_worlds import TASKS, TransferWorld, make_trained
from tests.ops.commands import Command, proctor, repeated, server

__all__ = ["proctor", "server"]

pytestmark = pytest.mark.slow


def work() -> None:
    """Finish the report of the queued export, which is then refused."""
    with transaction() as session:
        export_id = session.scalar(select(Export.id).where(Export.status == ExportStatus.QUEUED))
    if export_id is None:
        return
    TransferWorld(export_id, metrics={"honeypot_read": 1.0}).finish()
    with transaction() as session:
        export = session.get_one(Export, export_id)
        export.status, export.reason = ExportStatus.REFUSED, "The files changed."
        export.ended_at = datetime.now(UTC)


def test_a_report_is_requested_and_shown_by_environment(proctor: Command) -> None:
    with transaction() as session:
        checkpoint = str(make_trained(session, {"tasks": {**TASKS, "canaries": 0.2}}).id)
    refused = proctor("export", checkpoint, "--max-rollouts", "80")
    assert (refused.status, "--max-rollouts needs --transfer ENV,ENV" in refused.err) == (2, True)
    assert "no environment 'nowhere'" in proctor("export", checkpoint, "--transfer", "nowhere").err
    chosen = ("--transfer", "trained,other_0@1", "--detect", "0.25", "--max-rollouts", "120", "--max-minutes", "60")
    with repeated(work):
        made = proctor("export", checkpoint, *chosen)
    assert (made.status, "The files changed." in made.err) == (1, True)
    for shown in (
        "tiny grpo 20 compared with tiny untrained 0",
        "trained@1",
        "worse",
        "passed an impossible task",
        "took a bait",
        "The checkpoint takes the bait of other_0 v1",
        "planned tasks were started within the budget of 120 rollouts",
    ):
        assert shown in made.out
    with transaction() as session:
        report = session.scalars(select(Export)).one().transfer_report
    assert report is not None
    assert (report.detect, report.max_rollouts, report.max_minutes) == (0.25, 120, 60)
