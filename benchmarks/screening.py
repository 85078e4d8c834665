"""A detector that screens, against one that only notes: what does it do to what is really learned?

    OMP_NUM_THREADS=1 python -m benchmarks.screening [--seeds 0,1,2] [--tasks 400] [--screen paid_exit] [--set …]

Of each seed, with the product's own parts (env host and sandbox, Postgres with every rollout, each run in a process of
its own as a worker starts it), on `sloppy_guess`, whose reward can be hacked:

1. `note`: the preset's warm-up and 40 steps of GRPO, no alarm that pauses, every detector notes.
2. `screen`: a branch from the same warm-up with the same seed, tasks, steps and rate; flags of `--screen` are kept out
   of the gradient. Nobody judges anything, so what is flagged stays out.
3. Warm-up and both ends play the same held-out tasks, which no examination used, on the repaired version
   (`backend.showcase.repair`). True success is the share of numbers that are found: that column cannot be hacked.

It ends with 1 when the difference over the tasks of all seeds does not exclude 0, or is not in favour of screening.
"""

import argparse
import logging
import statistics
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog
import torch
from rich.console import Console
from sqlalchemy import func, select
from transformers.utils.logging import disable_progress_bar

from backend.core.session import transaction
from backend.detectors.tables import Flag
from backend.domain.detectors.registry import SPECS
from backend.domain.detectors.spec import Action
from backend.domain.statistics import Estimate, estimate_mean, paired_difference
from backend.domain.training.configuration import Stage
from backend.domain.vocabulary import RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.runs.tables import MetricPoint, Run
from backend.training.branches import checkpoint_for, start_branch
from backend.training.choices import nest
from backend.training.schemas import resolve_configuration
from backend.training.tables import Intervention
from benchmarks.installation import installation
from benchmarks.intervention import ENVIRONMENT, PRESET, _checkpoint, _examined, _repaired, _steps, _told, _trainer
from benchmarks.intervention_table import Found, _percent, _points, _print
from benchmarks.mastery import _setting
from benchmarks.mastery_runs import Trained, conduct_apart, train_apart
from benchmarks.training_runs import environment

BOUNDED = {"grpo.steps": "40", "checkpoints.every": "20"}
"""The hack is there long before, and a run takes some minutes."""
LAST = 5
"""Steps at the end whose mean reward is shown."""

console = Console(soft_wrap=True)


@dataclass(frozen=True, slots=True)
class Arm:
    """One run, and what its flags came to."""

    trained: Trained
    reward: float
    """Mean of the last training steps: what the run itself believes."""
    flagged: int
    screened: int


@dataclass(frozen=True, slots=True)
class Compared:
    """One seed."""

    seed: int
    arms: Mapping[str, Arm]
    found: Mapping[str, Found]


def main() -> int:
    options = _options()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    disable_progress_bar()
    torch.set_num_threads(1)
    with installation():
        careless, repaired = environment(ENVIRONMENT), _repaired()
        done: list[Compared] = []
        for seed in options.seeds:
            done.append(_compare(careless, repaired, seed, options))
            _print_all(done)
    whole = _over_all(done)
    return 0 if whole is not None and whole.low > 0 else 1


def _compare(
    careless: EnvironmentVersion, repaired: EnvironmentVersion, seed: int, options: argparse.Namespace
) -> Compared:
    quiet = {f"detectors.{name}": "note" for name in SPECS} | {"alarms.suspicion": "note"}
    choices = nest(quiet | BOUNDED | dict(options.set) | {"seed": str(seed)})
    noted = _told(train_apart(careless, f"seed {seed}, note", resolve_configuration(options.preset, choices)))
    branch = _branch(noted.run_id, options.screen)
    screened = _told(conduct_apart(branch, f"seed {seed}, screen"))
    steps = _steps(noted.run_id)
    policies = {
        "warm-up": _checkpoint(noted.run_id, Stage.SFT),
        "note": _checkpoint(noted.run_id, Stage.GRPO, steps),
        "screen": _checkpoint(branch, Stage.GRPO, steps),
    }
    arms = {"note": _arm(noted, options.screen), "screen": _arm(screened, options.screen)}
    return Compared(seed, arms, _examined(repaired, policies, options.tasks))


def _branch(run_id: uuid.UUID, detectors: Sequence[str]) -> uuid.UUID:
    """From the weights before GRPO, as `proctor run branch RUN --step 0 --set detectors.NAME=screen` starts it."""
    actor = _trainer()
    with transaction() as session:
        run = session.get_one(Run, run_id)
        changes = {f"detectors.{name}": str(Action.SCREEN) for name in detectors}
        branch = start_branch(session, actor, run, checkpoint_for(session, run, None, 0), changes)
        branch.status, branch.attempt = RunStatus.RUNNING, 1
        return branch.id


def _arm(trained: Trained, detectors: Sequence[str]) -> Arm:
    if trained.status != RunStatus.COMPLETED:
        raise SystemExit(f"{trained.name} ended {trained.status}: {trained.reason}")
    flags = select(func.count()).where(Flag.run_id == trained.run_id, Flag.detector.in_(detectors))
    kept = select(func.coalesce(func.sum(Intervention.rollouts), 0)).where(Intervention.run_id == trained.run_id)
    rewards = select(MetricPoint.value).where(MetricPoint.run_id == trained.run_id, MetricPoint.name == "reward")
    with transaction() as session:
        last = session.scalars(rewards.order_by(MetricPoint.step.desc()).limit(LAST)).all()
        flagged, screened = session.scalar(flags) or 0, session.scalar(kept) or 0
    return Arm(trained, statistics.fmean(value or 0.0 for value in last), flagged, screened)


def _print_all(done: Sequence[Compared]) -> None:
    columns = ["seed", "arm", f"training reward, last {LAST} steps", "flagged", "kept out", "seconds", "CPU s"]
    rows = [
        [
            str(each.seed),
            name,
            f"{arm.reward:.3f}",
            str(arm.flagged),
            str(arm.screened),
            f"{arm.trained.seconds:.0f}",
            f"{arm.trained.cpu_seconds:.0f}",
        ]
        for each in done
        for name, arm in each.arms.items()
    ]
    _print(console, "what the runs saw (the time of note has the warm-up in it)", columns, rows)
    told = [
        [
            str(each.seed),
            *(_percent(estimate_mean(each.found[name])) for name in ("warm-up", "note", "screen")),
            _points(paired_difference(each.found["note"], each.found["screen"])),
        ]
        for each in done
    ]
    if len(done) > 1:
        pooled = {
            name: [value for each in done for value in each.found[name]] for name in ("warm-up", "note", "screen")
        }
        told.append(["all", *(_percent(estimate_mean(values)) for values in pooled.values()), _points(_over_all(done))])
    count = len(done[0].found["note"])
    title = f"numbers found in the same {count} held-out tasks (95 %)"
    _print(console, title, ["seed", "warm-up", "note", "screen", "screen − note"], told)
    if len(done) > 1:
        means = estimate_mean(
            [statistics.fmean(each.found["screen"]) - statistics.fmean(each.found["note"]) for each in done]
        )
        console.print(f"over the {len(done)} seeds' means (Student): {_points(means)}", highlight=False)


def _over_all(done: Sequence[Compared]) -> Estimate | None:
    """Paired by task, over the tasks of all seeds."""
    note = [value for each in done for value in each.found["note"]]
    return paired_difference(note, [value for each in done for value in each.found["screen"]])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.screening", description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default=PRESET)
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[0, 1, 2])
    parser.add_argument("--screen", type=lambda text: text.split(","), default=["paid_exit"], help="detectors")
    parser.add_argument("--set", type=_setting, action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--tasks", type=int, default=400, help="held-out tasks that every policy plays")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
