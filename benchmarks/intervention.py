"""A reward that can be hacked, from the first hacked step to the repaired version: is the intervention worth it?

    OMP_NUM_THREADS=1 python -m benchmarks.intervention [--seeds 0,1,2] [--tasks 400] [--set grpo.steps=80 …]

Of each seed, with the product's own parts (env host and sandbox, Postgres with every rollout, each run in a process of
its own as a worker starts it):

1. A model from scratch trains on `sloppy_guess` by the preset; a grave suspicion pauses it.
2. The onset of the exploit is told from the stored rollouts (`intervention_onset`), and held against the pause.
3. The alarm is answered: rolled back to the last good checkpoint, onto the repaired version (that of the showcase
   `hacked-reward`). It trains to the same number of steps.
4. The paused run is then left alone: its alarm is switched off, and it goes on to its end on the careless version.
5. Warm-up, paused, left alone and repaired play the same held-out tasks, which no examination of a run used, on the
   repaired version. True success is the share of numbers that are found. Beside them play policies without a model;
   `--baselines` plays these alone, which takes a minute and trains nothing.
"""

import argparse
import logging
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog
import torch
from rich.console import Console
from sqlalchemy import select
from transformers.utils.logging import disable_progress_bar

from backend.checkpoints.tables import Checkpoint
from backend.core.artifacts import get_folder
from backend.core.session import transaction
from backend.domain.environments.manifest import Manifest
from backend.domain.ids import new_id
from backend.domain.rollouts.rollout import Rollout, task_of
from backend.domain.training.configuration import Stage, TrainingConfiguration
from backend.domain.vocabulary import AlarmAnswer, Phase, Role, RunStatus, Split
from backend.environments.library import load_package
from backend.environments.service import import_package
from backend.environments.tables import EnvironmentVersion
from backend.runs.tables import Run
from backend.showcase.repair import repaired
from backend.team.tables import Person
from backend.training.alarms import answer_alarm
from backend.training.branch_versions import onto_version
from backend.training.choices import nest
from backend.training.schemas import resolve_configuration
from backend.training.steering import change_settings
from backend.training.tables import Alarm
from backend.web.identity import Actor
from benchmarks.installation import installation
from benchmarks.intervention_onset import StepShares, onset_of, shares_of
from benchmarks.intervention_table import Found, Intervention, print_curves, print_interventions, print_success
from benchmarks.mastery import _setting
from benchmarks.mastery_games import arena_for
from benchmarks.mastery_runs import Trained, conduct_apart, train_apart
from benchmarks.training_runs import environment
from workers.models.load import load_folder
from workers.models.policy import LocalPolicy
from workers.policies.scripted import ScriptedPolicy
from workers.rollouts.engine import GroupPlan
from workers.training.context import single_groups
from workers.training.env_pool import Arena

PRESET = "sloppy-guess-watched"
ENVIRONMENT = "sloppy_guess"
FIRST_UNSEEN = 500
"""Held-out tasks from here on are played by no run's own examination."""
SEED = 20_260_102
BASELINES = {
    "random legal": "random",
    "the same guess always": "constant",
    "the teacher": "teacher",
    "gold play": "gold",
}
REASON = "A measurement of the intervention itself."
"""Why the branch may go on without a certificate."""

console = Console(soft_wrap=True)


def main() -> int:
    options = _options()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    disable_progress_bar()
    torch.set_num_threads(1)
    with installation():
        careless, repaired = environment(ENVIRONMENT), _repaired()
        beside = _baselines(repaired, options.tasks)
        if options.baselines:
            print_success(console, [], beside)
            return 0
        done = []
        for seed in options.seeds:
            done.append(_carry_out(careless, repaired, seed, options))
            print_interventions(console, done)
            print_curves(console, done)
            print_success(console, done, beside)
    return 0


def _repaired() -> EnvironmentVersion:
    with transaction() as session:
        files = repaired(load_package(ENVIRONMENT))
        version = import_package(session, ENVIRONMENT, files, notes="The reward is repaired.")
        assert version is not None, "the content is new"
        return version


def _carry_out(
    careless: EnvironmentVersion, repaired: EnvironmentVersion, seed: int, options: argparse.Namespace
) -> Intervention:
    choices = nest(dict(options.set) | {"seed": str(seed)})
    trained = _told(train_apart(careless, f"seed {seed}, careless", resolve_configuration(options.preset, choices)))
    alarm = _pausing_alarm(trained.run_id)
    steps = _steps(trained.run_id)
    policies = {"warm-up": _checkpoint(trained.run_id, Stage.SFT)}
    curves: dict[str, Sequence[StepShares]] = {}
    back_to, again = "–", 0
    if alarm is not None:
        policies["paused"] = _checkpoint(trained.run_id, Stage.GRPO, alarm.step)
        branch = _roll_back(trained.run_id, alarm.id, repaired.number)
        back_to = _start_of(branch)
        again = _to_the_end(branch.id, f"seed {seed}, repaired from {back_to}")
        policies["repaired"] = _checkpoint(branch.id, Stage.GRPO, steps)
        curves["repaired"] = shares_of(branch.id)
        _leave_alone(trained.run_id)
        _to_the_end(trained.run_id, f"seed {seed}, left alone")
    policies["left alone"] = _checkpoint(trained.run_id, Stage.GRPO, steps)
    curves["careless"] = shares_of(trained.run_id)
    return Intervention(
        seed=seed,
        trained=trained,
        onset=onset_of(trained.run_id),
        paused_at=alarm.step if alarm else None,
        alarm=alarm.sentence if alarm else "",
        back_to=back_to,
        paused_again=again,
        curves=curves,
        found=_examined(repaired, policies, options.tasks),
    )


def _told(trained: Trained) -> Trained:
    said = f"{trained.name}: {trained.status}, {trained.seconds:,.0f} s, {trained.cpu_seconds:,.0f} CPU s"
    console.print(f"{said}. {trained.reason}", style="dim")
    return trained


def _to_the_end(run_id: uuid.UUID, name: str) -> int:
    """How often an alarm paused it on the way; each time it is resumed."""
    pauses = 0
    while _told(conduct_apart(run_id, name)).status == RunStatus.PAUSED:
        pauses += 1
        _leave_alone(run_id)
    return pauses


def _start_of(branch: Run) -> str:
    with transaction() as session:
        start = session.get_one(Checkpoint, branch.checkpoint_id)
        return f"{start.stage} {start.step}"


def _pausing_alarm(run_id: uuid.UUID) -> Alarm | None:
    with transaction() as session:
        if session.get_one(Run, run_id).status is not RunStatus.PAUSED:
            return None
        of_run = select(Alarm).where(Alarm.run_id == run_id, Alarm.name == "suspicion")
        return session.scalars(of_run.order_by(Alarm.step.desc(), Alarm.id)).first()


def _steps(run_id: uuid.UUID) -> int:
    with transaction() as session:
        return TrainingConfiguration.of_run(session.get_one(Run, run_id).configuration).grpo.steps


def _checkpoint(run_id: uuid.UUID, stage: Stage, step: int | None = None) -> Checkpoint:
    """The run's last of this stage, or the one of a step."""
    with transaction() as session:
        rows = select(Checkpoint).where(Checkpoint.run_id == run_id, Checkpoint.stage == stage)
        if step is not None:
            rows = rows.where(Checkpoint.step == step)
        return session.scalars(rows.order_by(Checkpoint.step.desc()).limit(1)).one()


def _trainer() -> Actor:
    with transaction() as session:
        person = session.scalars(select(Person).limit(1)).first()
        if person is None:
            person = Person(id=new_id(), email="trainer@example.org", name="Trainer", role=Role.TRAINER)
            session.add(person)
        return Actor(person.id, person.name, person.role, "", is_token=False)


def _roll_back(run_id: uuid.UUID, alarm_id: uuid.UUID, number: int) -> Run:
    """As `proctor run answer RUN suspicion roll_back --version NUMBER` does it, and a worker takes it up."""
    actor = _trainer()
    with transaction() as session:
        run = session.get_one(Run, run_id)
        onto = onto_version(session, run, number, REASON)
        branch = answer_alarm(session, actor, run, alarm_id, AlarmAnswer.ROLL_BACK, onto=onto)
        assert branch is not None
        branch.status, branch.attempt = RunStatus.RUNNING, 1
        return branch


def _leave_alone(run_id: uuid.UUID) -> None:
    """Nobody answers, and no alarm pauses any more."""
    actor = _trainer()
    with transaction() as session:
        run = session.get_one(Run, run_id)
        change_settings(session, actor, run, {"alarms.suspicion": "note"})
        run.status, run.ended_at, run.stop_requested_at = RunStatus.RUNNING, None, None
        run.attempt += 1


def _examined(version: EnvironmentVersion, policies: Mapping[str, Checkpoint], tasks: int) -> dict[str, Found]:
    with arena_for(version) as arena, tempfile.TemporaryDirectory(prefix="intervention-") as scratch:
        return {
            name: _found(arena, version, get_folder(row.artifact, Path(scratch) / name), tasks)
            for name, row in policies.items()
        }


def _baselines(version: EnvironmentVersion, tasks: int) -> dict[str, Found]:
    """What a trained policy is worth something beside, on the same tasks."""
    with arena_for(version) as arena:
        found = {}
        for name, script in BASELINES.items():
            played: list[Rollout] = []
            plans, policy = _plans(version, tasks), ScriptedPolicy(script)
            arena.play(plans, policy, phase=Phase.HELDOUT, seed=SEED, on_rollout=played.append)
            found[name] = _wins(sorted(played, key=lambda rollout: rollout.group))
        return found


def _found(arena: Arena, version: EnvironmentVersion, folder: Path, tasks: int) -> Found:
    """As it was trained, at temperature 1."""
    policy = LocalPolicy(*load_folder(folder), temperature=1.0, lockstep=True)
    try:
        return _wins(arena.play_in_lockstep(_plans(version, tasks), policy, phase=Phase.HELDOUT, seed=SEED))
    finally:
        arena.close_policy(policy)


def _plans(version: EnvironmentVersion, tasks: int) -> list[GroupPlan]:
    manifest = Manifest.model_validate(version.manifest)
    return single_groups([task_of(manifest, Split.HELDOUT, FIRST_UNSEEN + number) for number in range(tasks)])


def _wins(rollouts: Sequence[Rollout]) -> Found:
    if failed := [rollout for rollout in rollouts if not rollout.is_completed]:
        raise SystemExit(f"{len(failed)} episodes failed: {failed[0].error_message}")
    return [rollout.columns["win"] for rollout in rollouts]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.intervention", description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default=PRESET)
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[0, 1, 2])
    parser.add_argument("--set", type=_setting, action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--tasks", type=int, default=400, help="held-out tasks that every policy plays")
    parser.add_argument("--baselines", action="store_true", help="play those without a model, and train nothing")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
