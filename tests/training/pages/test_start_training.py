"""Starting a training run: what is queued, and what is refused before anything is."""

import uuid
from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.core.tables import Job
from backend.domain.vocabulary import CheckStatus, PolicyKind, Queue, Role, RunKind
from backend.environments.tables import Certificate, EnvironmentVersion
from backend.errors import InvalidInput
from backend.policies.tables import Policy
from backend.runs.tables import Run
from backend.training.schemas import TrainingRequest
from backend.training.service import start_training
from backend.web.identity import Actor
from tests.factories import make_environment_version, make_person, make_run

REASON = "A first look; nothing will be kept."


@pytest.fixture
def actor(session: Session) -> Actor:
    person = make_person(session, Role.TRAINER)
    return Actor(person.id, person.role, name=person.name)


@pytest.fixture
def version(session: Session) -> EnvironmentVersion:
    return make_environment_version(session)


def certify(session: Session, version: EnvironmentVersion, status: CheckStatus) -> None:
    run = make_run(session, version, kind=RunKind.CHECK)
    session.add(Certificate(version_id=version.id, run_id=run.id, status=status, results=[]))
    session.flush()


def refusal(session: Session, actor: Actor, version: EnvironmentVersion, **fields: Any) -> dict[str, str]:
    with pytest.raises(InvalidInput) as caught:
        start_training(session, actor, TrainingRequest(**{"version_id": version.id, **fields}))
    assert session.scalar(select(func.count()).select_from(Job)) == 0
    return caught.value.fields


def test_it_queues_a_job_and_makes_the_policy(session: Session, actor: Actor, version: EnvironmentVersion):
    certify(session, version, CheckStatus.PASSED)
    run = start_training(session, actor, TrainingRequest(version_id=version.id, preset="quick", name="first"))
    job = session.scalars(select(Job).where(Job.run_id == run.id)).one()
    policy = session.get_one(Policy, run.policy_id)
    assert (job.name, job.queue) == ("training.run", Queue.GPU)
    assert (policy.kind, policy.name) == (PolicyKind.LOCAL, "first")
    assert run.columns == ["win", "format", "invalid_move"]
    assert run.weights == [1.0, 0.2, -0.1]
    assert run.configuration["grpo"]["steps"] == 10
    assert run.configuration["content_hash"] == version.content_hash


def test_a_version_that_cuts_the_conversation_is_refused(session: Session, actor: Actor):
    action = {"format": "tag", "tag": "move", "field": "cell"}
    version = make_environment_version(session, agent={"action": action, "context": {"kind": "last", "turns": 1}})
    certify(session, version, CheckStatus.PASSED)
    assert "truncates the conversation" in refusal(session, actor, version)["version_id"]


def test_the_form_wins_over_the_preset(session: Session, actor: Actor, version: EnvironmentVersion):
    certify(session, version, CheckStatus.WARNED)
    request = TrainingRequest(version_id=version.id, preset="quick", configuration={"grpo": {"steps": "7"}})
    run = start_training(session, actor, request)
    assert run.configuration["grpo"]["steps"] == 7
    assert run.configuration["grpo"]["group_size"] == 4


def test_a_form_that_is_sent_again_starts_nothing_new(session: Session, actor: Actor, version: EnvironmentVersion):
    certify(session, version, CheckStatus.PASSED)
    request = TrainingRequest(version_id=version.id, key="once")
    assert start_training(session, actor, request).id == start_training(session, actor, request).id
    assert session.scalar(select(func.count()).select_from(Run).where(Run.kind == RunKind.TRAINING)) == 1


def test_it_refuses_a_version_without_a_certificate(session: Session, actor: Actor, version: EnvironmentVersion):
    assert "no certificate" in refusal(session, actor, version)["without_certificate"]


def test_it_refuses_a_version_that_failed_its_checks(session: Session, actor: Actor, version: EnvironmentVersion):
    certify(session, version, CheckStatus.FAILED)
    assert "failed its checks" in refusal(session, actor, version, without_certificate="because")["without_certificate"]
    assert (
        "at least 10 characters" in refusal(session, actor, version, without_certificate="a try")["without_certificate"]
    )


def test_a_typed_reason_is_kept_on_the_run(session: Session, actor: Actor, version: EnvironmentVersion):
    run = start_training(session, actor, TrainingRequest(version_id=version.id, without_certificate=REASON))
    assert run.configuration["without_certificate"] == REASON


def test_a_version_that_was_never_checked_is_checked_next_to_its_training(
    session: Session, actor: Actor, version: EnvironmentVersion
):
    start_training(session, actor, TrainingRequest(version_id=version.id, without_certificate=REASON))
    jobs = session.scalars(select(Job.name)).all()
    assert sorted(jobs) == ["environments.check", "training.run"]


def test_a_version_that_failed_is_not_checked_once_more(session: Session, actor: Actor, version: EnvironmentVersion):
    certify(session, version, CheckStatus.FAILED)
    run = start_training(session, actor, TrainingRequest(version_id=version.id, without_certificate=REASON))
    assert session.scalars(select(Job.name)).all() == ["training.run"]
    assert run.configuration["without_certificate"] == REASON


@pytest.mark.parametrize(
    ("configuration", "field"),
    [
        ({"grpo": {"steps": "many"}}, "grpo.steps"),
        ({"grpo": {"group_size": 1}}, "grpo.group_size"),
        ({"grpo": {"colour": "red"}}, "grpo.colour"),
        ({"grpo": {"tasks_per_step": 5, "group_size": 3, "micro_batches": 4}}, "grpo"),
        ({"heldout": {"tasks": 100_000}}, "heldout.tasks"),
        ({"sft": {"script": "nobody"}}, "configuration"),
        ({"model": {"source": "checkpoint", "checkpoint": str(uuid.uuid4())}}, "model.checkpoint"),
        ({"model": {"source": "base"}}, "model"),
        ({"recipe": "grpo"}, "configuration"),
    ],
)
def test_it_refuses_choices_that_cannot_work(
    session: Session, actor: Actor, version: EnvironmentVersion, configuration: dict[str, Any], field: str
):
    fields = refusal(session, actor, version, configuration=configuration, without_certificate=REASON)
    assert field in fields


def test_it_refuses_a_name_that_is_taken(session: Session, actor: Actor, version: EnvironmentVersion):
    start_training(session, actor, TrainingRequest(version_id=version.id, name="mine", without_certificate=REASON))
    with pytest.raises(InvalidInput) as caught:
        start_training(session, actor, TrainingRequest(version_id=version.id, name="mine", without_certificate=REASON))
    assert "mine" in caught.value.fields["name"]


def test_it_refuses_an_unknown_preset_and_an_unknown_version(
    session: Session, actor: Actor, version: EnvironmentVersion
):
    assert "preset" in refusal(session, actor, version, preset="none", without_certificate=REASON)
    assert "version_id" in refusal(session, actor, version, version_id=uuid.uuid4(), without_certificate=REASON)
