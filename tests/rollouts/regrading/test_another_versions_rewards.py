"""Another version's rewards over stored rollouts: only where it is proven to be faithful, or a person takes it on."""

import subprocess
import sys
import time
import uuid
from datetime import UTC, datetime

import pytest
from sqlalchemy import update

from backend.core.session import transaction
from backend.domain.ids import new_id
from backend.domain.vocabulary import CheckStatus, ErrorKind, Role, RolloutStatus, RunKind, RunStatus
from backend.environments.tables import Certificate, EnvironmentVersion
from backend.errors import InvalidInput
from backend.rollouts.regrading.schemas import StartRegrading
from backend.rollouts.regrading.service import NotRefused, override_refusal, start_regrading
from backend.rollouts.tables import Rollout
from backend.runs.service import resume_run
from backend.runs.tables import Run
from backend.settings import PROJECT_ROOT
from tests.factories import make_environment_version, make_member, make_run
from tests.rollouts.regrading.conftest import World, rollouts_of, run_of
from workers.tasks.registry import JobContext
from workers.tasks.regrading import run as carry_out

TIDIER = 'observation.metadata["rewards"]["tidy"] = 1.0'
BY_CHANCE = 'import random\nobservation.metadata["rewards"]["tidy"] = random.random()'
SHOWS_MORE = "observation.total += 1"
LATER = "observation.done = self.total >= 5"
EARLIER = "observation.done = self.total >= 2"
BREAKS = "raise RuntimeError('the counter is stuck')"


def test_the_same_conversation_is_paid_by_the_other_version(world: World) -> None:
    source_id = world.played(world.version(), group_size=2)
    run = world.rescore(source_id, version_id=world.version(TIDIER))
    assert (run.kind, run.status, run.reason) == (RunKind.RESCORE, RunStatus.COMPLETED, None)
    before, after = rollouts_of(source_id), rollouts_of(run.id)
    assert [rollout.columns for rollout in before] == [[3.0, 1.5]] * 8
    assert [rollout.columns for rollout in after] == [[3.0, 3.0]] * 8
    assert [rollout.reward for rollout in after] == [4.5] * 8
    assert [rollout.messages for rollout in after] == [rollout.messages for rollout in before]
    assert [rollout.source_id for rollout in after] == [rollout.id for rollout in before]
    assert [step["rewards"]["tidy"] for step in after[0].steps] == [1.0, 1.0, 1.0]
    assert (after[0].tokens_out, after[0].turns) == (before[0].tokens_out, 3)
    told = run.summary["rescoring"]
    assert (told["changed"], told["diverged"], told["failed"]) == (8, 0, 0)
    assert told["grounds"].startswith("8 of 8 sampled rollouts gave the stored rewards on ")


def test_an_environment_that_pays_by_chance_is_refused(world: World) -> None:
    source_id = world.played(world.version(BY_CHANCE))
    run = world.rescore(source_id, version_id=world.version())
    assert run.status is RunStatus.FAILED
    assert "Not regraded, because it would not be faithful. 0 of 4 sampled rollouts" in str(run.reason)
    assert rollouts_of(run.id) == []


def test_a_target_that_pays_by_chance_is_refused_too(world: World) -> None:
    source_id = world.played(world.version())
    run = world.rescore(source_id, version_id=world.version(BY_CHANCE))
    assert run.status is RunStatus.FAILED
    assert "0 of 4 gave the same rewards twice" in str(run.reason)


@pytest.mark.slow
def test_certificates_of_both_spare_the_second_scan_the_target(world: World) -> None:
    own, target = world.version(), world.version(TIDIER)
    _certify(own)
    _certify(target)
    run = world.rescore(world.played(own), version_id=target)
    assert run.status is RunStatus.COMPLETED
    assert "twice" not in run.summary["rescoring"]["grounds"]


def test_a_refused_one_is_done_when_a_person_states_why(world: World) -> None:
    source_id = world.played(world.version(BY_CHANCE))
    run = world.rescore(source_id, version_id=world.version())
    reason = "The chance was the fault that the new version mends."
    with transaction() as session:
        override_refusal(session, world.actor, session.get_one(Run, run.id), reason)
    carry_out(JobContext(uuid.uuid4(), run.id, {}, 2))
    done = run_of(run.id)
    assert (done.status, done.configuration["override"]) == (RunStatus.COMPLETED, reason)
    assert [rollout.reward for rollout in rollouts_of(run.id)] == [3.75] * 4
    with transaction() as session, pytest.raises(NotRefused):
        override_refusal(session, world.actor, session.get_one(Run, run.id), reason)


@pytest.mark.parametrize("other", [SHOWS_MORE, LATER], ids=["shows something else", "ends later"])
def test_what_the_policy_never_read_is_not_scored(world: World, other: str) -> None:
    run = world.rescore(world.played(world.version()), version_id=world.version(other))
    assert run.status is RunStatus.FAILED
    assert "diverges before reply" in str(run.reason)
    assert [(each.status, each.error_kind, each.reward) for each in rollouts_of(run.id)] == [
        (RolloutStatus.FAILED, ErrorKind.ENVIRONMENT, None)
    ] * 4


def test_with_a_reason_it_is_scored_and_marked(world: World) -> None:
    target = world.version(LATER)
    run = world.rescore(world.played(world.version()), version_id=target, override="Only the first three count.")
    assert run.status is RunStatus.COMPLETED
    found = [(each.metrics["replies_ended"], each.metrics["diverged_at"]) for each in rollouts_of(run.id)]
    assert found == [(1, 3)] * 4
    assert run.summary["rescoring"]["replies_ended"] == 4


@pytest.mark.slow
def test_an_episode_that_would_have_ended_earlier_is_scored_as_far_as_it_goes(world: World) -> None:
    run = world.rescore(world.played(world.version()), version_id=world.version(EARLIER))
    after = rollouts_of(run.id)
    assert [(each.reward, each.turns, each.metrics["replies_left"]) for each in after] == [(2.5, 2, 1)] * 4
    assert [message["role"] for message in after[0].messages] == ["user", "assistant"] * 2


@pytest.mark.slow
def test_an_answer_is_scored_though_the_last_words_of_the_environment_are_others(world: World) -> None:
    """Nothing reads what follows the last reply."""
    run = world.rescore(world.played(world.version(), "3"), version_id=world.version(SHOWS_MORE))
    assert run.status is RunStatus.COMPLETED
    assert [rollout.reward for rollout in rollouts_of(run.id)] == [3.25] * 4


@pytest.mark.slow
def test_a_target_that_breaks_leaves_failed_rows(world: World) -> None:
    target = world.version(f"if self.total == 1:\n    {BREAKS}")
    run = world.rescore(world.played(world.version()), version_id=target, override="Let us see what happens.")
    assert run.status in {RunStatus.FAILED, RunStatus.PAUSED}
    assert {(each.status, each.reward) for each in rollouts_of(run.id)} == {(RolloutStatus.FAILED, None)}
    assert "the counter is stuck" in str(rollouts_of(run.id)[0].error_message)


def test_a_version_of_another_environment_is_refused(world: World) -> None:
    source_id = world.played(world.version())
    with transaction() as session:
        elsewhere = make_environment_version(session).id
    with pytest.raises(InvalidInput) as refused:
        world.rescore(source_id, version_id=elsewhere)
    assert "Choose a version of that" in refused.value.fields["version_id"]


@pytest.mark.slow
def test_all_evaluations_of_a_version_are_requested_at_once(world: World) -> None:
    own = world.version()
    first, second = world.played(own), world.played(own, "3")
    run = world.rescore(evaluations_of=own, version_id=world.version(TIDIER))
    with transaction() as session:
        made = {row.source_run_id: row for row in session.query(Run).where(Run.kind == RunKind.RESCORE)}
    assert set(made) == {first, second}
    assert {row.status for row in made.values()} == {RunStatus.COMPLETED}
    assert {row.configuration["batch"] for row in made.values()} == {run.configuration["batch"]}


def test_a_repeated_request_with_a_key_starts_nothing_new(world: World) -> None:
    source_id, target = world.played(world.version()), world.version(TIDIER)
    first = world.rescore(source_id, version_id=target, key="nightly")
    assert world.rescore(source_id, version_id=target, key="nightly").id == first.id
    assert len(rollouts_of(first.id)) == 4


def test_rollouts_without_replies_fail_with_the_reason(world: World) -> None:
    source_id, target = world.played(world.version()), world.version(TIDIER)
    first = rollouts_of(source_id)[0]
    with transaction() as session:
        session.execute(update(Rollout).where(Rollout.id == first.id).values(steps=[], turns=0))
    run = world.rescore(source_id, version_id=target)
    assert rollouts_of(run.id)[0].error_message == "This rollout has no stored replies, so it cannot be replayed."
    assert (run.summary["completed"], run.summary["failed"]) == (3, 1)


def _certify(version_id: uuid.UUID) -> None:
    with transaction() as session:
        run = make_run(session, session.get_one(EnvironmentVersion, version_id), kind=RunKind.CHECK)
        result = {"check": "rescore_equal", "status": "passed"}
        found = {"version_id": version_id, "run_id": run.id, "status": CheckStatus.PASSED}
        session.add(Certificate(id=new_id(), results=[result], **found))
        assert make_member(session, Role.AUTHOR)


@pytest.mark.slow
def test_a_killed_worker_loses_and_doubles_nothing(world: World) -> None:
    source_id = world.played(world.version(), tasks=60)
    slow = world.version(f"import time; time.sleep(0.02)\n{TIDIER}")
    with transaction() as session:
        request = StartRegrading(run_ids=[source_id], version_id=slow)
        run_id = start_regrading(session, world.actor, request).runs[0].id
    code = "import uuid; from workers.tasks.regrading import run; from workers.tasks.registry import JobContext;"
    code += f" run(JobContext(uuid.uuid4(), uuid.UUID('{run_id}'), {{}}, 1))"
    with subprocess.Popen([sys.executable, "-c", code], cwd=PROJECT_ROOT) as worker:
        deadline = time.monotonic() + 60
        while run_of(run_id).progress.get("phase") not in {"preparing the environment", "scoring"}:
            assert worker.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        worker.kill()
    carry_out(JobContext(uuid.uuid4(), run_id, {}, 2))
    after = rollouts_of(run_id)
    assert (len(after), {rollout.reward for rollout in after}) == (60, {4.5})
    assert run_of(run_id).status is RunStatus.COMPLETED


@pytest.mark.slow
def test_a_stop_keeps_what_is_stored_and_the_rest_comes_later(world: World) -> None:
    source_id, target = world.played(world.version()), world.version(TIDIER)
    with transaction() as session:
        run = start_regrading(session, world.actor, StartRegrading(run_ids=[source_id], version_id=target)).runs[0]
        run.stop_requested_at = datetime.now(UTC)
    carry_out(JobContext(uuid.uuid4(), run.id, {}, 1))
    assert run_of(run.id).status is RunStatus.STOPPED
    with transaction() as session:
        resume_run(session, world.actor, session.get_one(Run, run.id))
    carry_out(JobContext(uuid.uuid4(), run.id, {}, 2))
    assert (run_of(run.id).status, len(rollouts_of(run.id))) == (RunStatus.COMPLETED, 4)
