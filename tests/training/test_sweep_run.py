"""A whole sweep: the jobs that a worker runs search, train and end it."""

import pytest
from sqlalchemy import select

from backend.core.queue import SWEEP_JOB
from backend.core.session import transaction
from backend.core.tables import Job
from backend.domain.sweeps.sweep import TrialState
from backend.domain.vocabulary import JobStatus, RunStatus
from backend.sweeps.tables import Sweep
from tests.sweeps.worlds import make_sweep, run_of, trials_of
from tests.training.conftest import SMALL, built_in, stored_version
from workers.tasks.execute import execute

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]


def test_a_sweep_trains_every_point_of_its_grid(installation: None) -> None:
    small = SMALL | {"sft": {**SMALL["sft"], "steps": 6}, "grpo": {**SMALL["grpo"], "steps": 2}}
    small["heldout"] = {"every": 1, "tasks": 4}
    with transaction() as session:
        version = stored_version(session, built_in("tictactoe"))
        grid = {"grpo.learning_rate": [1e-4, 1e-3]}
        sweep_id = make_sweep(session, grid, version=version, configuration=small, sampler="grid").id
    of_sweep = Job.status == JobStatus.QUEUED, Job.name.in_([SWEEP_JOB, "training.run"])
    for _ in range(20):
        with transaction() as session:
            job_id = session.scalar(select(Job.id).where(*of_sweep).order_by(Job.id).limit(1))
        if job_id is None:
            break
        execute(job_id)
    with transaction() as session:
        sweep = session.get_one(Sweep, sweep_id)
        trials = trials_of(session, sweep)
        assert (sweep.status, sweep.reason) == (RunStatus.COMPLETED, None)
        assert [trial.state for trial in trials] == [TrialState.COMPLETED] * 2
        assert sorted(trial.values["grpo.learning_rate"] for trial in trials) == [1e-4, 1e-3]
        for trial in trials:
            assert run_of(session, trial).configuration["grpo"]["learning_rate"] == trial.values["grpo.learning_rate"]
            assert trial.reward is not None
            assert trial.low is not None
            assert trial.last_step == 2
