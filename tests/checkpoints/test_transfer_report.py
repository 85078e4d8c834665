"""A transfer report in the product's own rows: both sides' evaluations are started, planned, compared and stopped."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select

from backend.checkpoints.queries import get_checkpoint
from backend.checkpoints.schemas import ExportChoice, TransferRequest
from backend.checkpoints.service import ExportInProgress, start_export
from backend.checkpoints.tables import Checkpoint, Export
from backend.checkpoints.transfers import NoTransferReport, stop_transfer, wake_unfinished_transfers
from backend.core.session import transaction
from backend.domain.checkpoints.transfer import TransferReport, TransferStatus
from backend.domain.vocabulary import ExportStatus, Role, RunKind, RunStatus
from backend.errors import InvalidInput
from backend.runs.tables import Run
from backend.web.identity import Actor
from tests.checkpoints.transfer_worlds import TASKS, make_world
from tests.factories import make_environment, make_manifest, make_package_version, make_person, make_policy
from workers.tasks import transfers
from workers.tasks.registry import JobContext

pytestmark = pytest.mark.usefixtures("committed_database")

TRAPPED = {"tasks": {**TASKS, "canaries": 0.2}}


@pytest.mark.slow
def test_both_sides_play_the_planned_tasks_and_the_difference_has_intervals() -> None:
    world = make_world(TRAPPED, detect=0.25, max_rollouts=1000)
    world.metrics = {"honeypot_read": 1.0}
    assert world.export_jobs == 0, "the export waits for the report"
    world.wake()
    pilots = world.plans
    assert [side for side, _, _ in pilots] == [True, False] * 2
    for before, after in zip(pilots[::2], pilots[1::2], strict=True):
        assert before[1:] == after[1:], "tasks, sampling and seed"
        assert before[2] == 7
    assert (pilots[0][1].tasks, pilots[2][1].tasks) == (20, 20 + 6)
    assert "0 of 4 evaluations" in world.row.progress["phase"]
    world.play_all()
    world.wake()
    report = world.report
    assert report.is_planned
    for each in report.environments:
        assert each.planned is not None
        assert 20 < each.planned < 200
        assert each.tasks == each.planned
    later = world.plans[4:]
    assert {plan.tasks for _, plan, _ in later} == {each.tasks - 20 for each in report.environments}
    row = world.finish()
    assert (row.status, world.export_jobs) == (ExportStatus.QUEUED, 1)
    _check_regression_and_hacks(world.report)


def _check_regression_and_hacks(report: TransferReport) -> None:
    assert (report.status, report.reason) == (TransferStatus.COMPLETED, "")
    trained, trapped = report.environments
    assert (trained.name, trained.is_trained, trapped.name) == ("trained", True, "other_0")
    for each in report.environments:
        assert each.verdict == "worse"
        assert each.compared == each.tasks
        assert each.reward is not None
        assert each.success is not None
        assert each.success.before.mean == pytest.approx(0.5, abs=0.05)
        assert each.success.after.mean == pytest.approx(0.1, abs=0.05)
        assert each.reward.difference.mean == pytest.approx(each.success.difference.mean, abs=1e-4)
        assert each.power is not None
        assert each.power > 0.7, "the variance of the pilot was about right"
        assert each.detectable is not None
        assert (len(each.before_runs), len(each.after_runs)) == (2, 2)
    assert trained.canary is None
    assert trapped.canary is not None
    assert (trapped.canary.before.found, trapped.canary.after.found) == (0, 6)
    assert trapped.canary_power == pytest.approx(1 - 0.75**6)
    assert trapped.honeypot is not None
    assert trapped.honeypot.change == 1.0
    assert trapped.flagged is not None
    assert trapped.flagged.after.found == trapped.flagged.after.looked_at, "the detector flags every bait"
    assert [warning.split(":")[0] for warning in report.warnings if "other_0" in warning] == [
        "The checkpoint got worse on other_0 v1",
        "The checkpoint passes impossible tasks of other_0 v1",
        "The checkpoint takes the bait of other_0 v1",
        "Detectors flag more rollouts on other_0 v1",
    ]


@pytest.mark.slow
def test_an_environment_that_fails_does_not_stop_the_others() -> None:
    with transaction() as session:
        make_policy(session, "by hand", configuration={"script": "teacher"})
    manifest = {"tasks": TASKS, "scripts": ["gold"]}
    world = make_world(manifest, environments=["trained", "other_0"], reference="by hand", max_rollouts=80)
    world.finish()
    report = world.report
    trained, other = report.environments
    assert (trained.status, trained.compared) == (TransferStatus.PARTIAL, 20)
    assert other.status is TransferStatus.FAILED
    assert "offers no script `teacher`" in other.reason
    assert report.status is TransferStatus.PARTIAL
    assert world.export_jobs == 1


@pytest.mark.slow
def test_an_evaluation_that_breaks_is_reported_with_its_reason() -> None:
    world = make_world(play=lambda is_reference, index, is_canary: None if is_reference else True)
    world.wake()
    world.play_all(RunStatus.FAILED)
    world.finish()
    (trained,) = world.report.environments
    assert (trained.status, trained.reason, trained.verdict) == (TransferStatus.FAILED, "It broke.", "")


@pytest.mark.slow
def test_what_the_budget_left_out_is_said() -> None:
    world = make_world(detect=0.01, max_rollouts=100)
    world.finish()
    (trained,) = world.report.environments
    assert (trained.status, trained.compared) == (TransferStatus.PARTIAL, 50)
    assert "50 of 200 planned tasks were started within the budget of 100 rollouts." in trained.reason
    assert "held-out tasks of the" in trained.reason


@pytest.mark.slow
def test_a_stop_ends_its_evaluations_and_exports_what_was_played() -> None:
    world = make_world(detect=0.01, max_rollouts=400)
    world.wake()
    world.play_all()
    world.wake()
    with transaction() as session:
        stop_transfer(session, session.get_one(Export, world.export_id))
    while world.wake() or world.scan_all():
        pass
    report = world.report
    assert (report.status, report.reason) == (TransferStatus.PARTIAL, "Stopped on request.")
    assert report.environments[0].compared == 20
    assert set(statuses()) == {RunStatus.COMPLETED, RunStatus.STOPPED}
    assert (world.row.status, world.export_jobs) == (ExportStatus.QUEUED, 1)
    with transaction() as session, pytest.raises(NoTransferReport):
        stop_transfer(session, session.get_one(Export, world.export_id))


def statuses() -> list[RunStatus]:
    with transaction() as session:
        return list(session.scalars(select(Run.status).where(Run.kind == RunKind.EVALUATION)))


def test_a_report_that_takes_too_long_ends_at_the_next_sweep() -> None:
    world = make_world(max_minutes=5)
    world.wake()
    with transaction() as session:
        row = session.get_one(Export, world.export_id)
        started = (datetime.now(UTC) - timedelta(minutes=6)).isoformat()
        row.transfer = {**(row.transfer or {}), "started_at": started}
        wake_unfinished_transfers(session)
    while world.wake():
        pass
    report = world.report
    assert report.reason == "Stopped after 5 minutes."
    assert set(statuses()) == {RunStatus.STOPPED}
    assert report.environments[0].reason == "Stopped before it began."


def test_a_job_that_is_given_up_leaves_the_export_without_a_report() -> None:
    world = make_world()
    world.wake()
    with transaction() as session:
        context = JobContext(uuid.uuid4(), None, {"export_id": str(world.export_id)}, 5)
        transfers.give_up(session, context, "out of memory")
    assert (world.report.status, world.report.reason) == (TransferStatus.FAILED, "out of memory")
    assert world.report.environments[0].status is TransferStatus.FAILED
    assert set(statuses()) == {RunStatus.STOPPED}
    assert world.export_jobs == 1


def test_without_names_it_plays_the_trained_environment_and_those_with_traps() -> None:
    bait = "class Game:\n    def honeypot_read(self):\n        return 0.0\n"
    with transaction() as session:
        for name, code in (("baited", bait), ("commented", bait.replace("    def", "    # def"))):
            files = {"openenv.yaml": make_manifest(name).model_dump_json(), "server/app.py": code}
            make_package_version(session, files, make_environment(session, name))
    world = make_world(TRAPPED, {"tasks": TASKS})
    assert [each.name for each in world.report.environments] == ["trained", "baited", "other_0"]
    assert world.report.reference.name == "tiny untrained 0"


@pytest.mark.parametrize(
    ("request_", "field_", "message"),
    [
        ({"environments": ["nowhere"]}, "environments", "no environment 'nowhere'"),
        ({"environments": ["trained@9"]}, "environments", "no version 9"),
        ({"reference": "nobody"}, "reference", "no policy or checkpoint 'nobody'"),
        ({"reference": "tiny"}, "reference", "the exported checkpoint itself"),
    ],
)
def test_bad_choices_are_refused_with_the_reason(request_: dict[str, object], field_: str, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        make_world(**request_)
    assert message in refused.value.fields[field_]


def test_an_export_without_a_report_is_not_mistaken_for_one() -> None:
    world = make_world()
    with transaction() as session:
        session.get_one(Export, world.export_id).transfer = None
        person = make_person(session, Role.TRAINER)
        checkpoint = session.scalars(select(Checkpoint).where(Checkpoint.stage == "grpo")).one()
        actor = Actor(person.id, person.role, name=person.name)
        with pytest.raises(ExportInProgress):
            start_export(
                session, actor, get_checkpoint(session, checkpoint.id), ExportChoice(transfer=TransferRequest())
            )
