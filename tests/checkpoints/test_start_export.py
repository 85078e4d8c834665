"""Queueing an export, and handing out only what was proven."""

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.checkpoints.files import NotExported, export_zip
from backend.checkpoints.queries import get_checkpoint
from backend.checkpoints.service import NotFromTraining, start_export
from backend.checkpoints.tables import Export
from backend.core.tables import Job
from backend.domain.vocabulary import ExportStatus, PolicyKind, Role, RunKind
from backend.web.identity import Actor
from tests.factories import make_checkpoint, make_person, make_policy, make_run


@pytest.fixture
def actor(session: Session) -> Actor:
    person = make_person(session, Role.TRAINER)
    return Actor(person.id, person.role, name=person.name)


def test_a_second_request_meets_the_first(session: Session, actor: Actor):
    policy = make_policy(session, kind=PolicyKind.LOCAL)
    checkpoint = make_checkpoint(session, policy, make_run(session, policy=policy, kind=RunKind.TRAINING))
    first, second = (start_export(session, actor, checkpoint) for _ in range(2))
    assert first.id == second.id
    job = session.scalars(select(Job)).one()
    assert job.arguments["export_id"] == str(first.id)


def test_a_finished_export_may_be_made_again(session: Session, actor: Actor):
    policy = make_policy(session, kind=PolicyKind.LOCAL)
    checkpoint = make_checkpoint(session, policy, make_run(session, policy=policy, kind=RunKind.TRAINING))
    start_export(session, actor, checkpoint).status = ExportStatus.REFUSED
    start_export(session, actor, checkpoint)
    assert session.scalar(select(func.count()).select_from(Export)) == 2


def test_it_refuses_weights_that_no_run_made(session: Session, actor: Actor):
    checkpoint = make_checkpoint(session, make_policy(session, kind=PolicyKind.LOCAL))
    with pytest.raises(NotFromTraining):
        start_export(session, actor, checkpoint)


@pytest.mark.parametrize("status", [ExportStatus.QUEUED, ExportStatus.REFUSED, ExportStatus.FAILED])
def test_what_was_not_proven_is_not_handed_out(status: ExportStatus):
    with pytest.raises(NotExported):
        export_zip(Export(status=status, artifact="exports/x.zip"))


def test_it_takes_a_checkpoint_as_the_json_api_loads_it(session: Session, actor: Actor):
    known = make_checkpoint(session, make_policy(session), make_run(session))
    session.expunge_all()

    export = start_export(session, actor, get_checkpoint(session, known.id))

    assert export.checkpoint_id == known.id
