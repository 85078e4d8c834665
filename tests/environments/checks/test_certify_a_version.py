"""The job `environments.check`, from a queued run to the certificate: real env host, real Postgres."""

import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import func, select

from backend.core.artifacts import put_folder
from backend.core.session import transaction
from backend.domain.vocabulary import CheckStatus, Phase, PolicyKind, RunKind, RunStatus
from backend.environments.library import load_package
from backend.environments.tables import Certificate
from backend.policies.queries import get_policy_option
from backend.policies.tables import Policy
from backend.rollouts.tables import Group, Rollout
from backend.runs.tables import Run, RunLogLine
from tests.envhost_fixture import HostProcess
from tests.factories import make_checkpoint, make_package_version, make_policy, make_run
from tests.installation import committing_to
from workers.environments.checks.registry import CHECKS
from workers.storage.policies import PolicyIsGone
from workers.tasks.environment_checks import run
from workers.tasks.registry import JobContext

pytestmark = pytest.mark.slow

QueueCheck = Callable[..., uuid.UUID]


@pytest.fixture(scope="module")
def at_work(second_database_url: str, host_process: HostProcess) -> Iterator[None]:
    """Rows that the tests commit stay until the last test has ended."""
    with committing_to(second_database_url, PROCTOR_ENVHOST_URL=host_process.address):
        yield


@pytest.fixture
def queue_check(at_work: None) -> QueueCheck:
    return queued


def queued(files: dict[str, str], policy: str = "") -> uuid.UUID:
    """A queued check of a version with these files, measured with a policy of that name; returns the run's id."""
    with transaction() as session:
        version = make_package_version(session, files)
        fields = {"kind": RunKind.CHECK, "status": RunStatus.QUEUED, "attempt": 0, "ended_at": None}
        reference = {"reference": get_policy_option(session, policy)} if policy else {}
        return make_run(session, version, **fields, configuration=reference).id


@pytest.fixture(scope="module")
def sound(at_work: None) -> uuid.UUID:
    """A completed check of a version without a fault."""
    run_id = queued(load_package("number_guess"))
    carry_out(run_id)
    return run_id


def carry_out(run_id: uuid.UUID) -> None:
    run(JobContext(uuid.uuid4(), run_id, {}, 1))


def certificate_of(run_id: uuid.UUID) -> Certificate:
    with transaction() as session:
        return session.scalars(select(Certificate).where(Certificate.run_id == run_id)).one()


def run_of(run_id: uuid.UUID) -> Run:
    with transaction() as session:
        return session.get_one(Run, run_id)


def test_a_sound_version_gets_its_certificate(sound: uuid.UUID):
    certificate, row = certificate_of(sound), run_of(sound)
    assert certificate.status is CheckStatus.PASSED
    assert [result["check"] for result in certificate.results] == [check.id for check in CHECKS]
    assert (row.status, row.summary["certificate"]) == (RunStatus.COMPLETED, "passed")
    assert (row.progress["done"], row.progress["total"]) == (len(CHECKS), len(CHECKS))


def test_what_was_played_is_stored_and_the_evidence_leads_to_it(sound: uuid.UUID):
    results = {result["check"]: result for result in certificate_of(sound).results}
    shown = {uuid.UUID(text) for text in results["gold_reaches_bound"]["rollouts"]}
    with transaction() as session:
        phases = session.scalars(select(Rollout.phase).where(Rollout.run_id == sound).distinct()).all()
        found = session.scalars(select(Rollout).where(Rollout.id.in_(shown))).all()
        lines = session.scalars(select(RunLogLine.message).where(RunLogLine.run_id == sound)).all()
    assert phases == [Phase.CHECK]
    assert {rollout.id for rollout in found} == shown
    assert [rollout.reward for rollout in found] == pytest.approx([1.3] * 5)
    assert any(line.startswith("passed gold_reaches_bound: Gold gets the highest reward") for line in lines)


def test_a_job_that_is_run_again_doubles_nothing(sound: uuid.UUID):
    counts = [counts_of(sound)]
    with transaction() as session:
        session.get_one(Run, sound).status = RunStatus.QUEUED
    carry_out(sound)
    counts.append(counts_of(sound))
    assert counts[0] == counts[1]
    assert counts[0][2] == 1


def counts_of(run_id: uuid.UUID) -> list[int | None]:
    """Rollouts, groups and certificates."""
    with transaction() as session:
        of_run = [model.run_id == run_id for model in (Rollout, Group, Certificate)]
        return [session.scalar(select(func.count()).where(condition)) for condition in of_run]


def test_a_package_that_cannot_be_imported_fails_with_its_log(queue_check: QueueCheck):
    files = load_package("number_guess")
    run_id = queue_check(files | {"server/app.py": "import no_such_module_anywhere\n"})
    carry_out(run_id)
    certificate = certificate_of(run_id)
    assert certificate.status is CheckStatus.FAILED
    assert "no_such_module_anywhere" in certificate.results[0]["evidence"]
    assert run_of(run_id).status is RunStatus.COMPLETED


def test_a_stopped_check_certifies_nothing(queue_check: QueueCheck):
    run_id = queue_check(load_package("number_guess"))
    with transaction() as session:
        session.get_one(Run, run_id).stop_requested_at = func.now()
    carry_out(run_id)
    assert run_of(run_id).status is RunStatus.STOPPED
    with transaction() as session:
        assert session.scalar(select(func.count()).where(Certificate.run_id == run_id)) == 0


def test_a_check_that_is_over_is_left_alone(queue_check: QueueCheck):
    run_id = queue_check(load_package("number_guess"))
    with transaction() as session:
        session.get_one(Run, run_id).status = RunStatus.STOPPED
    carry_out(run_id)
    assert run_of(run_id).attempt == 0


def test_a_chosen_policy_is_named_in_the_certificate(queue_check: QueueCheck):
    with transaction() as session:
        make_policy(session, "half-learned", configuration={"script": "teacher"})
    run_id = queue_check(load_package("number_guess"), "half-learned")
    carry_out(run_id)
    results = {result["check"]: result for result in certificate_of(run_id).results}
    assert "the chosen policy `half-learned`" in results["success_mixed"]["evidence"].replace("The", "the")


def test_a_policy_that_was_deleted_meanwhile_is_reported(queue_check: QueueCheck):
    with transaction() as session:
        policy = make_policy(session, "gone")
    run_id = queue_check(load_package("number_guess"), "gone")
    with transaction() as session:
        session.get_one(Policy, policy.id).deleted_at = datetime.now(UTC)
    with pytest.raises(PolicyIsGone, match="gone was deleted"):
        carry_out(run_id)


@pytest.mark.filterwarnings("default")
@pytest.mark.timeout(400)
def test_a_checkpoint_measures_in_a_separate_process(queue_check: QueueCheck, tmp_path: Path):
    from backend.domain.training.configuration import ModelChoice
    from workers.models.build import build_model, build_tokenizer

    tokenizer = build_tokenizer(["Guess.", "Higher.", "Lower.", "<guess>50</guess>"] * 9, context=1024)
    model = build_model(tokenizer, ModelChoice(context=1024), seed=5)
    model.save_pretrained(tmp_path / "tiny")
    tokenizer.save_pretrained(tmp_path / "tiny")
    with transaction() as session:
        policy = make_policy(session, "tiny", kind=PolicyKind.LOCAL)
        put_folder(tmp_path / "tiny", make_checkpoint(session, policy).artifact)
    files = load_package("number_guess")
    manifest = files["openenv.yaml"].replace("max_tokens_per_turn: 32", "max_tokens_per_turn: 6")  # it rambles
    run_id = queue_check(files | {"openenv.yaml": manifest}, "tiny")
    carry_out(run_id)
    results = {result["check"]: result for result in certificate_of(run_id).results}
    assert results["success_mixed"]["status"] == "warned"
    assert "Success never happens: the chosen policy `tiny, grpo step" in results["success_mixed"]["evidence"]
    assert results["error_rate"]["status"] == "passed"
