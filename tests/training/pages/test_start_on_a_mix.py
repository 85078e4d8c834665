"""Starting a training run on several environments: what is pinned, and what is refused."""

from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.core.tables import Job
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import CheckStatus, Role, RunKind
from backend.environments.tables import Certificate, EnvironmentVersion
from backend.errors import InvalidInput
from backend.runs.tables import Run
from backend.training.preflight import findings_at_once
from backend.training.schemas import TrainingRequest
from backend.training.service import start_training
from backend.web.identity import Actor
from tests.factories import make_environment, make_environment_version, make_person, make_run


@pytest.fixture
def actor(session: Session) -> Actor:
    person = make_person(session, Role.TRAINER)
    return Actor(person.id, person.role, name=person.name)


def certified(session: Session, version: EnvironmentVersion) -> EnvironmentVersion:
    run = make_run(session, version, kind=RunKind.CHECK)
    session.add(Certificate(version_id=version.id, run_id=run.id, status=CheckStatus.PASSED, results=[]))
    session.flush()
    return version


@pytest.fixture
def own(session: Session) -> EnvironmentVersion:
    return certified(session, make_environment_version(session))


@pytest.fixture
def other(session: Session) -> EnvironmentVersion:
    """The second version of another environment, with a shared column name and one more column."""
    environment = make_environment(session, "guessing")
    make_environment_version(session, environment, weights={"win": 1.0})
    weights = {"win": 5.0, "close": 0.5}
    return certified(session, make_environment_version(session, environment, number=2, weights=weights))


def start(session: Session, actor: Actor, own: EnvironmentVersion, mix: Any, **choices: Any) -> Run:
    configuration = {"mix": mix, **choices}
    return start_training(session, actor, TrainingRequest(version_id=own.id, configuration=configuration))


def refusal(session: Session, actor: Actor, own: EnvironmentVersion, mix: Any, **choices: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        start(session, actor, own, mix, **choices)
    assert session.scalar(select(func.count()).select_from(Job)) == 0
    return " ".join([str(caught.value), *caught.value.fields.values()])


def test_it_pins_the_newest_version_and_unites_the_columns(
    session: Session, actor: Actor, own: EnvironmentVersion, other: EnvironmentVersion
) -> None:
    run = start(session, actor, own, "guessing=0.5")
    assert run.configuration["mix"] == ["guessing@2=0.5"]
    assert run.columns == ["win", "format", "invalid_move", "close"]
    assert run.weights == [1.0, 0.2, -0.1, 0.5]
    part = TrainingConfiguration.of_run(run.configuration).mix[0]
    assert (part.environment, part.version, part.weight) == ("guessing", 2, 0.5)


@pytest.mark.parametrize("mix", [["guessing@2=2"], "guessing@2=2", [{"environment": "guessing", "weight": 2}]])
def test_it_is_reported_as_text_or_as_json(
    session: Session, actor: Actor, own: EnvironmentVersion, other: EnvironmentVersion, mix: Any
) -> None:
    assert start(session, actor, own, mix).configuration["mix"] == ["guessing@2=2"]


@pytest.mark.parametrize(
    ("mix", "why"),
    [
        ("nothing_here", "There is no published version of an environment called nothing_here."),
        ("guessing@7", "There is no version 7 of an environment called guessing."),
        ("guessing guessing", "guessing v2 is in the run twice."),
        ("Guessing!", "write an environment as name@version=weight"),
        ("guessing=0", "Enter more than 0."),
    ],
)
def test_what_is_not_there_is_refused_by_name(
    session: Session, actor: Actor, own: EnvironmentVersion, other: EnvironmentVersion, mix: str, why: str
) -> None:
    assert why in refusal(session, actor, own, mix)


def test_every_environment_needs_its_certificate(
    session: Session, actor: Actor, own: EnvironmentVersion, other: EnvironmentVersion
) -> None:
    assert "guessing v1 has no certificate" in refusal(session, actor, own, "guessing@1")


def test_every_environment_must_offer_the_script_that_is_imitated(
    session: Session, actor: Actor, own: EnvironmentVersion
) -> None:
    environment = make_environment(session, "mute")
    certified(session, make_environment_version(session, environment, scripts=["gold"]))
    assert "mute: The environment has no scripted policy `teacher`" in refusal(session, actor, own, "mute")


def test_each_environment_has_enough_held_out_tasks_for_its_part(
    session: Session, actor: Actor, own: EnvironmentVersion
) -> None:
    few = make_environment(session, "few")
    certified(session, make_environment_version(session, few, tasks={"train": 100, "heldout": 20, "levels": 1}))
    assert "few has 20 held-out tasks" in refusal(session, actor, own, "few", heldout={"tasks": 100})
    assert start(session, actor, own, "few=0.25", heldout={"tasks": 100})


def test_a_step_has_room_for_every_environment(
    session: Session, actor: Actor, own: EnvironmentVersion, other: EnvironmentVersion
) -> None:
    told = refusal(session, actor, own, "guessing", grpo={"tasks_per_step": 1, "group_size": 4})
    assert "A step of 1 tasks is too small for 2 environments" in told


def test_a_pre_flight_asks_every_environment_and_states_which_is_not_there(
    session: Session, own: EnvironmentVersion, other: EnvironmentVersion
) -> None:
    choices = TrainingConfiguration.model_validate({"mix": ["guessing@2=0.5", "nowhere"]})
    found = {each.name: each for each in findings_at_once(session, own, choices)}
    assert found["certificate: guessing"].status == "ok"
    assert "There is no published version of an environment called nowhere" in found["mix"].sentence
    assert found[f"tasks: {own.manifest['name']}"].evidence["asked"] == 4000
