"""Versions of a counter, evaluations that were really played on them, and jobs that really run."""

import uuid
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import undefer

from backend.core.session import transaction
from backend.domain.vocabulary import Role, RunStatus
from backend.environments.tables import Environment, EnvironmentVersion
from backend.rollouts.regrading.schemas import StartRegrading, StartReplay
from backend.rollouts.regrading.service import start_regrading
from backend.rollouts.tables import Group, Rollout
from backend.runs.tables import Run
from tests.envhost_fixture import HostProcess, package_files
from tests.factories import (
    Member,
    make_environment,
    make_member,
    make_package_version,
    make_policy,
    make_queued_evaluation,
)
from tests.web_fixtures import *  # noqa: F403
from workers.policies.scripted import ScriptedPolicy
from workers.tasks.evaluations import evaluate
from workers.tasks.registry import JobContext
from workers.tasks.regrading import run as carry_out


@dataclass
class World:
    """One environment with versions that differ in what their step does."""

    environment_id: uuid.UUID
    actor: Member
    numbers: int = 0

    def version(self, in_step: str = "pass", in_reset: str = "pass") -> uuid.UUID:
        """The counter (adds the replied number, done at 3), with extra statements."""
        self.numbers += 1
        files = package_files(in_step=in_step, in_reset=in_reset)
        with transaction() as session:
            environment = session.get_one(Environment, self.environment_id)
            return make_package_version(session, files, environment, self.numbers).id

    def played(self, version_id: uuid.UUID, reply: str = "1", *, tasks: int = 4, group_size: int = 1) -> uuid.UUID:
        """An evaluation of a policy that always says the same; 1 takes three turns."""
        plan = {"tasks": tasks, "group_size": group_size, "concurrency": 8}
        with transaction() as session:
            version = session.get_one(EnvironmentVersion, version_id)
            policy = make_policy(session, configuration={"script": "constant", "constant": reply})
            run_id = make_queued_evaluation(session, version, policy, **plan).id
        assert evaluate(run_id, ScriptedPolicy("constant", reply)) is RunStatus.COMPLETED, run_of(run_id).reason
        return run_id

    def rescore(self, *run_ids: uuid.UUID, **request: Any) -> Run:
        """Start and run it; return the (first) new run."""
        with transaction() as session:
            started = start_regrading(session, self.actor, StartRegrading(run_ids=list(run_ids), **request))
        return self._done([run.id for run in started.runs])

    def replay(self, *run_ids: uuid.UUID, **request: Any) -> Run:
        with transaction() as session:
            started = start_regrading(session, self.actor, StartReplay(run_ids=list(run_ids), **request))
        return self._done([run.id for run in started.runs])

    def _done(self, run_ids: list[uuid.UUID]) -> Run:
        for run_id in run_ids:
            carry_out(JobContext(uuid.uuid4(), run_id, {}, 1))
        return run_of(run_ids[0])


@pytest.fixture
def world(found_host: HostProcess) -> World:
    with transaction() as session:
        return World(make_environment(session).id, make_member(session, Role.AUTHOR))


def run_of(run_id: uuid.UUID) -> Run:
    with transaction() as session:
        return session.get_one(Run, run_id)


def rollouts_of(run_id: uuid.UUID) -> list[Rollout]:
    """In the order of their places."""
    with transaction() as session:
        statement = (
            select(Rollout)
            .options(undefer(Rollout.steps), undefer(Rollout.messages), undefer(Rollout.tokens))
            .join(Group, Group.id == Rollout.group_id)
            .where(Rollout.run_id == run_id)
            .order_by(Group.ordinal, Rollout.member)
        )
        return list(session.scalars(statement))
