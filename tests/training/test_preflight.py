"""A pre-flight on a worker: what it finds out about a run, for real, in a process of its own."""

import uuid
from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import NoResultFound

from backend.db.models import Checkpoint, Policy, Preflight, Rollout, Run
from backend.db.session import transaction
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import PreflightStatus
from tests.training.conftest import SMALL, built_in, stored_version
from workers.jobs.preflight import give_up, run
from workers.jobs.registry import JobContext
from workers.training.preflight.run import examine

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def new_preflight(**choices: Any) -> uuid.UUID:
    configuration = TrainingConfiguration.model_validate({**SMALL, **choices})
    with transaction() as session:
        version = stored_version(session, built_in("tictactoe"))
        preflight = Preflight(version_id=version.id, configuration=configuration.resolved())
        session.add(preflight)
        session.flush()
        return preflight.id


def look(preflight_id: uuid.UUID) -> Preflight:
    """As the job does it, in a process of its own."""
    run(JobContext(uuid.uuid4(), None, {"preflight_id": str(preflight_id)}, 1))
    with transaction() as session:
        return session.get_one(Preflight, preflight_id)


def look_here(preflight_id: uuid.UUID) -> Preflight:
    examine(preflight_id)
    with transaction() as session:
        return session.get_one(Preflight, preflight_id)


def findings_of(preflight: Preflight) -> dict[str, dict[str, Any]]:
    return {finding["name"]: finding for finding in preflight.findings}


def test_it_tells_what_will_happen_and_stores_nothing_else(installation: None):
    preflight = look(new_preflight())
    found = findings_of(preflight)
    assert (preflight.status, preflight.reason) == (PreflightStatus.COMPLETED, None)
    assert found["chat_template"]["evidence"]["generation_markers"] is True
    assert 0 < found["conversation"]["evidence"]["longest"] <= 192
    assert found["base_success"]["evidence"]["attempts"] == 32 * 4
    assert "The warm-up has to change this" in found["base_success"]["sentence"]
    assert found["gradient"]["evidence"]["expected"] > 0.9
    assert found["memory"]["evidence"]["weights"] > 100_000
    assert 0 < found["time"]["evidence"]["seconds"] < 600
    with transaction() as session:
        for table in (Run, Policy, Checkpoint, Rollout):
            assert session.scalar(select(func.count()).select_from(table)) == 0


def test_reinforcement_of_a_model_that_never_succeeds_is_a_problem_with_a_proposal(installation: None):
    found = findings_of(look_here(new_preflight(recipe="grpo")))
    assert found["base_success"]["status"] == "problem"
    assert "warm up by SFT" in found["base_success"]["advice"]
    assert "easier level" in found["base_success"]["advice"]


def test_a_model_that_cannot_be_loaded_is_a_finding(installation: None):
    preflight = look_here(new_preflight(model={"source": "base", "base": "/no/such/folder"}))
    found = findings_of(preflight)
    assert preflight.status is PreflightStatus.COMPLETED
    assert found["model"]["status"] == "problem"


def test_a_pre_flight_that_was_given_up_says_so(installation: None):
    preflight_id = new_preflight()
    with transaction() as session:
        give_up(session, JobContext(uuid.uuid4(), None, {"preflight_id": str(preflight_id)}, 1), "no memory")
    with transaction() as session:
        preflight = session.get_one(Preflight, preflight_id)
    assert (preflight.status, preflight.reason) == (PreflightStatus.FAILED, "no memory")


def test_an_unknown_pre_flight_ends_badly(installation: None):
    with pytest.raises(NoResultFound):
        examine(uuid.uuid4())
