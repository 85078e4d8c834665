"""The job `evaluations.run`: play what is missing of a plan, store it, sum it up.

It goes on where the rows stand: completed rollouts are kept, failed and cancelled ones are played again, nothing is
doubled. Several such jobs may share one run; the last of them to end sums it up.
"""

import uuid

import structlog
from sqlalchemy.orm import joinedload, undefer

from backend.core.session import transaction
from backend.domain.environments.manifest import Manifest
from backend.domain.policies.prices import Price
from backend.domain.runs.plans import EvaluationPlan
from backend.domain.vocabulary import PolicyKind, RolloutStatus, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.policies.service import secret_of
from backend.runs.service import begin_run
from backend.runs.tables import Run
from workers.policies import make_policy
from workers.policies.base import Policy
from workers.storage.policy_options import PolicyIsGone
from workers.storage.work_claims import Share, ended_counts
from workers.tasks.children import must_run_child
from workers.tasks.evaluation_attempts import Assignment, Evaluation
from workers.tasks.event_loops import run_async
from workers.tasks.registry import JobContext

LOCAL_MODULE = "workers.models.play"
"""Runs `evaluate` with a local model in a process of its own."""

logger = structlog.get_logger(__name__)


def run(context: JobContext) -> None:
    """The job's body."""
    run_id = context.need_run()
    policy = _make_policy(run_id)
    if policy is None:
        must_run_child(LOCAL_MODULE, [str(run_id), str(context.job_id)], run_id=run_id)
    else:
        evaluate(run_id, policy, context.job_id)


def evaluate(run_id: uuid.UUID, policy: Policy, job_id: uuid.UUID | None = None) -> RunStatus:
    """Play the evaluation of a run with a policy, which is closed at the end. Needs no running event loop.

    Returns how the run ended; `running` when other jobs still play their share of it.
    """
    assignment = _take_up(run_id, job_id)
    if assignment is None:
        logger.info("the run is over already")
        return run_async(_close(policy))
    return run_async(Evaluation(assignment, policy).play())


async def _close(policy: Policy) -> RunStatus:
    await policy.aclose()
    return RunStatus.COMPLETED


def _make_policy(run_id: uuid.UUID) -> Policy | None:
    """The run's policy; None for a local one, which needs a process with torch."""
    with transaction() as session:
        row = session.get_one(Run, run_id, options=[joinedload(Run.policy)])
        policy = row.policy
        if policy is None or policy.deleted_at is not None:
            raise PolicyIsGone(f"The policy {policy.name if policy else ''} was deleted; start with another one.")
        if policy.kind is PolicyKind.LOCAL:
            return None
        plan = EvaluationPlan.model_validate(row.configuration)
        return make_policy(policy.kind, policy.configuration, secret_of(policy), plan.sampling, plan.workers)


def _take_up(run_id: uuid.UUID, job_id: uuid.UUID | None) -> Assignment | None:
    """Begin the run and read what is to be done. None when it is over."""
    with transaction() as session:
        row = session.get_one(Run, run_id)
        if not begin_run(session, row):
            return None
        version = session.get_one(EnvironmentVersion, row.version_id, options=[undefer(EnvironmentVersion.files)])
        plan = EvaluationPlan.model_validate(row.configuration)
        manifest = _as_planned(Manifest.model_validate(version.manifest), plan)
        price = (row.configuration.get("policy") or {}).get("price")
        ended = ended_counts(session, run_id)
        return Assignment(
            run_id=run_id,
            seed=row.seed,
            share=Share(run_id, plan, manifest, job_id),
            content_hash=version.content_hash,
            files=version.files,
            price=Price.model_validate(price) if price else None,
            kept=ended.get(RolloutStatus.COMPLETED, 0),
        )


def _as_planned(manifest: Manifest, plan: EvaluationPlan) -> Manifest:
    """With the plan's limit of tokens a turn and its context in the place of the manifest's own."""
    proctor = manifest.proctor
    episode = proctor.episode.model_copy(update={"max_tokens_per_turn": plan.sampling.max_tokens_per_turn})
    agent = proctor.agent.model_copy(update={"context": plan.context or proctor.agent.context})
    return manifest.model_copy(update={"proctor": proctor.model_copy(update={"episode": episode, "agent": agent})})
