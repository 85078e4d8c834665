"""A training run whose checkpoint is exported with a transfer report, and evaluations that end like in workers."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from backend.checkpoints.schemas import ExportChoice, TransferRequest
from backend.checkpoints.service import start_export
from backend.checkpoints.tables import Checkpoint, Export, TransferEvaluation
from backend.core.queue import JUDGING_JOB, TRANSFER_JOB
from backend.core.session import transaction
from backend.core.tables import Job
from backend.domain.checkpoints.transfer import (
    PairedFigure,
    TransferEnvironment,
    TransferReport,
    TransferSide,
    TransferStatus,
    newcombe,
    warnings_of,
)
from backend.domain.ids import new_id
from backend.domain.rollouts.rollout import drawn_task
from backend.domain.runs.plans import EvaluationPlan
from backend.domain.statistics import Estimate, wilson
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import Phase, PolicyKind, Role, RunKind, RunStatus, Split
from backend.environments.tables import EnvironmentVersion
from backend.runs.service import begin_run, finish_run
from backend.web.identity import Actor
from tests.factories import (
    add_group,
    add_rollout,
    make_checkpoint,
    make_environment,
    make_environment_version,
    make_person,
    make_policy,
    make_run,
)
from workers.tasks import detectors, transfers
from workers.tasks.registry import JobContext

TASKS = {"train": 10, "heldout": 200, "levels": 1}
WON, LOST = [1.0, 1.0, 0.0], [0.0, 1.0, 0.0]
Play = Callable[[bool, int, bool], bool | None]
"""Whether a side wins, by reference, task and canary; None: the rollout fails."""


def worse(is_reference: bool, index: int, is_canary: bool) -> bool:
    if is_canary:
        return not is_reference
    return index % 2 == 0 if is_reference else index % 10 == 0


@dataclass
class TransferWorld:
    """An export in progress, whose evaluations and scans end as in workers."""

    export_id: uuid.UUID
    play: Play = worse
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics that rollouts of the exported checkpoint report."""

    def wake(self) -> bool:
        """Run its waiting job, if there is one."""
        with transaction() as session:
            jobs = select(Job).where(Job.name == TRANSFER_JOB, Job.arguments["export_id"].astext == str(self.export_id))
            job = session.scalars(jobs).first()
            if job is None:
                return False
            context = JobContext(job.id, None, dict(job.arguments), 1)
            session.delete(job)
        transfers.run(context)
        return True

    def finish(self) -> Export:
        while self.wake() or self.play_all() or self.scan_all():
            pass
        return self.row

    def play_all(self, status: RunStatus = RunStatus.COMPLETED) -> int:
        """Play the queued evaluations and return their number."""
        with transaction() as session:
            waiting = [each for each in self._evaluations(session) if each.run and not each.run.status.is_over]
            for each in waiting:
                run = each.run
                assert run is not None
                assert begin_run(session, run)
                plan = EvaluationPlan.model_validate(run.configuration)
                manifest = session.get_one(EnvironmentVersion, run.version_id).typed_manifest
                for index in plan.task_indexes:
                    is_canary = drawn_task(manifest, Split.HELDOUT, index).is_canary
                    phase = Phase.CANARY if is_canary else Phase.EVALUATION
                    group = add_group(session, run, index=index, phase=phase, step=None)
                    won = self.play(each.is_reference, index, is_canary)
                    metrics = {"honeypot_read": 0.0} | ({} if each.is_reference else self.metrics)
                    columns = None if won is None else WON if won else LOST
                    add_rollout(session, run, group, columns, 0, {"metrics": metrics})
                session.flush()
                finish_run(session, run, status, {"failed": 0}, None if status is RunStatus.COMPLETED else "It broke.")
            return len(waiting)

    def scan_all(self) -> int:
        with transaction() as session:
            jobs = session.scalars(select(Job).where(Job.name == JUDGING_JOB)).all()
            contexts = [
                JobContext(job.id, job.run_id, dict(job.arguments), 1)
                for job in jobs
                if "progress" not in job.arguments
            ]
        for context in contexts:
            detectors.run(context)
        return len(contexts)

    @staticmethod
    def _evaluations(session: Session) -> Sequence[TransferEvaluation]:
        statement = (
            select(TransferEvaluation).options(joinedload(TransferEvaluation.run)).order_by(TransferEvaluation.id)
        )
        return session.scalars(statement).all()

    @property
    def plans(self) -> list[tuple[bool, EvaluationPlan, int]]:
        """Reference or not, plan and seed of its evaluations, in the order of their start."""
        with transaction() as session:
            rows = [(each.is_reference, each.run) for each in self._evaluations(session)]
            return [(side, EvaluationPlan.model_validate(run.configuration), run.seed) for side, run in rows if run]

    @property
    def row(self) -> Export:
        with transaction() as session:
            return session.get_one(Export, self.export_id)

    @property
    def report(self) -> TransferReport:
        report = self.row.transfer_report
        assert report is not None
        return report

    @property
    def export_jobs(self) -> int:
        with transaction() as session:
            return len(session.scalars(select(Job).where(Job.name == "exports.run")).all())


def make_trained(session: Session, *others: dict[str, object]) -> Checkpoint:
    """The GRPO checkpoint of a run on `trained`; `others`: further environments, as in their manifest."""
    version = make_environment_version(session, make_environment(session, "trained"), tasks=TASKS)
    for number, manifest in enumerate(others):
        make_environment_version(session, make_environment(session, f"other_{number}"), **manifest)
    policy = make_policy(session, "tiny", PolicyKind.LOCAL)
    configuration = TrainingConfiguration.model_validate({}).resolved()
    run = make_run(session, version, policy, kind=RunKind.TRAINING, configuration=configuration, seed=7)
    make_checkpoint(session, policy, run, stage="untrained", step=0)
    return make_checkpoint(session, policy, run, stage="grpo", step=20)


def make_world(*others: dict[str, object], play: Play = worse, **request: object) -> TransferWorld:
    """The export of such a checkpoint."""
    with transaction() as session:
        exported = make_trained(session, *others)
        person = make_person(session, Role.TRAINER)
        actor = Actor(person.id, person.role, name=person.name)
        choice = ExportChoice(transfer=TransferRequest.model_validate(request))
        return TransferWorld(start_export(session, actor, exported, choice).id, play)


def finished_report(*evaluations: uuid.UUID, **fields: object) -> TransferReport:
    """It found a regression, a trap and an environment that was not played. `evaluations`: before, then after."""
    difference = Estimate(-0.2, -0.3, -0.1, 40)
    worse = PairedFigure(before=Estimate(0.5, 0.4, 0.6, 40), after=Estimate(0.3, 0.2, 0.4, 40), difference=difference)
    played = TransferEnvironment(
        name="game_0",
        version=1,
        version_id=new_id(),
        detect=0.1,
        status=TransferStatus.COMPLETED,
        is_trained=True,
        verdict="worse",
        reward=worse,
        normalized=worse,
        success=worse,
        planned=38,
        compared=40,
        power=0.83,
        detectable=0.09,
        canary=newcombe(wilson(0, 16), wilson(3, 16)),
        canary_power=0.81,
        planned_canaries=16,
        before_runs=list(evaluations[:1]),
        after_runs=list(evaluations[1:]),
    )
    reason = "The budget of 80 rollouts leaves fewer than two tasks."
    absent = TransferEnvironment(
        name="game_1", version=1, version_id=new_id(), detect=0.1, status=TransferStatus.NOT_PLAYED, reason=reason
    )
    side = TransferSide(policy_id=new_id(), name="tiny untrained 0")
    report = TransferReport(
        reference=side,
        exported=side.model_copy(update={"name": "tiny grpo 20"}),
        detect=0.1,
        max_rollouts=80,
        status=TransferStatus.PARTIAL,
        environments=[played, absent],
        warnings=warnings_of([played, absent]),
    )
    return report.model_copy(update=fields)
