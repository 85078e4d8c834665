"""Starting a sweep: the job that is queued, and the message for each value that cannot work."""

from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.core.row_access import limit_to
from backend.core.tables import Job
from backend.domain.projects.access import ProjectAccess
from backend.domain.vocabulary import Role
from backend.errors import InvalidInput
from backend.projects.tables import Project
from backend.sweeps.tables import Sweep
from tests.factories import make_environment_version, make_member
from tests.sweeps.worlds import RATES, make_sweep

GROUPS = {"grpo.group_size": [4, 8, 16]}


def refusal(session: Session, parameters: dict[str, Any], **request: Any) -> dict[str, str]:
    with pytest.raises(InvalidInput) as caught:
        make_sweep(session, parameters, **request)
    assert session.scalar(select(func.count()).select_from(Job)) == 0
    assert session.scalar(select(func.count()).select_from(Sweep)) == 0
    return caught.value.fields


def test_it_queues_a_job_and_keeps_every_setting(session: Session) -> None:
    sweep = make_sweep(session, {**RATES, **GROUPS}, trials=12, parallel=3)
    job = session.scalars(select(Job)).one()
    assert (job.name, job.arguments) == ("sweeps.run", {"sweep_id": str(sweep.id)})
    settings = sweep.typed_settings
    assert (settings.trials, settings.parallel) == (12, 3)
    assert settings.space["grpo.group_size"].values == [4, 8, 16]
    assert sweep.configuration["grpo"]["steps"] == 40


def test_the_number_of_runs_of_a_grid_follows_from_its_values(session: Session) -> None:
    grid = {"grpo.learning_rate": {"low": 1e-5, "high": 1e-3, "log": True, "points": 3}, **GROUPS}
    assert make_sweep(session, grid, sampler="grid").typed_settings.trials == 9


def test_numbers_may_be_text_as_yaml_reads_them(session: Session) -> None:
    sweep = make_sweep(session, {"grpo.learning_rate": {"low": "1e-5", "high": "1e-3"}, "grpo.beta": ["1e-2", 0]})
    assert sweep.typed_settings.space["grpo.beta"].values == [0.01, 0.0]


@pytest.mark.parametrize(
    ("parameters", "field", "words"),
    [
        ({"grpo.learning_rat": [1]}, "parameters.grpo.learning_rat", "grpo.learning_rate"),
        ({"grpo": [1]}, "parameters.grpo", "no setting"),
        ({"grpo.group_size": [4, 1]}, "parameters.grpo.group_size", "1: Enter 2 or more."),
        ({"grpo.learning_rate": {"low": 0.1, "high": 2}}, "parameters.grpo.learning_rate", "2: Enter 1 or less."),
        ({"grpo.learning_rate": {"low": 0.1, "high": 0.01}}, "parameters.grpo.learning_rate", "range is empty"),
        ({"grpo.loss_type": ["dapo", "sum"]}, "parameters.grpo.loss_type", "sum: Choose"),
        ({"grpo.loss_type": {"low": 0, "high": 1}}, "parameters.grpo.loss_type", "List its values"),
        ({"grpo.steps": {"low": 1.5, "high": 3}}, "parameters.grpo.steps", "whole numbers"),
        ({"grpo.learning_rate": ["fast"]}, "parameters.grpo.learning_rate", "Enter a number."),
        ({"hardware.gradient_checkpointing": ["maybe"]}, "parameters.hardware.gradient_checkpointing", "maybe"),
        ({"grpo.group_size": [7, 9], "grpo.micro_batches": [4096]}, "parameters", "No combination"),
        ({"heldout.tasks": [90_000]}, "parameters", "held-out tasks"),
        ({"recipe": ["grpo"]}, "parameters", "Start with SFT"),
    ],
)
def test_impossible_values_are_refused_at_their_field(
    session: Session, parameters: dict[str, Any], field: str, words: str
) -> None:
    found = refusal(session, parameters)
    assert list(found) == [field]
    assert words in found[field]


def test_every_wrong_parameter_is_named_at_once(session: Session) -> None:
    found = refusal(session, {"nonsense": [1], "grpo.group_size": [0], **RATES})
    assert list(found) == ["parameters.nonsense", "parameters.grpo.group_size"]


def test_a_grid_must_fit_the_limit_and_work_at_every_point(session: Session) -> None:
    assert "`points`" in refusal(session, RATES, sampler="grid")["parameters.grpo.learning_rate"]
    assert "3 points, more than the limit of 2 runs" in refusal(session, GROUPS, sampler="grid", trials=2)["trials"]
    many = {"grpo.group_size": list(range(2, 60)), "grpo.tasks_per_step": list(range(1, 60))}
    assert "500" in refusal(session, many, sampler="grid")["trials"]
    mixed = {"grpo.tasks_per_step": [1, 2], "grpo.micro_batches": [1, 16]}
    message = refusal(session, mixed, sampler="grid")["parameters"]
    assert message.startswith("1 point of 4 cannot be trained. grpo.tasks_per_step=1, grpo.micro_batches=16:")


def test_limits_below_one_run_and_missing_certificates_are_refused(session: Session) -> None:
    assert "One run takes" in refusal(session, RATES, max_steps=10)["max_steps"]
    assert "no certificate" in refusal(session, RATES, without_certificate=None)["without_certificate"]


def test_a_repeated_key_returns_the_same_sweep(session: Session) -> None:
    actor, version = make_member(session, Role.TRAINER), make_environment_version(session)
    first = make_sweep(session, actor=actor, version=version, key="one")
    assert make_sweep(session, actor=actor, version=version, key="one") is first
    assert session.scalar(select(func.count()).select_from(Job)) == 1


def test_it_belongs_to_the_restricted_project_of_its_environment(session: Session) -> None:
    other, secret = Project(name="Other"), Project(name="Secret", is_restricted=True)
    session.add_all([other, secret])
    version = make_environment_version(session)
    session.flush()
    limit_to(session, ProjectAccess(Role.TRAINER), other.id)
    assert make_sweep(session, version=version).project_id == other.id
    version.environment.project_id = secret.id
    session.flush()
    assert make_sweep(session, version=version).project_id == secret.id
