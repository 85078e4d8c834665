"""Load the rollouts of one side of an effort study that can be cut, and store their curves."""

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session, undefer

from backend.core.events import announce, run_topic
from backend.core.session import transaction
from backend.domain.environments.manifest import Manifest
from backend.domain.environments.prompts import visible_messages
from backend.domain.ids import new_id
from backend.domain.results.pass_at_k import REWARD, SuccessRule, possible_rewards
from backend.domain.rollouts.rollout import TaskSpec
from backend.domain.runs.plans import EvaluationPlan
from backend.domain.studies.effort import EffortMeasure, ReasonedReply, ReplyCurve, cut_points, split_reply
from backend.domain.studies.study import EffortSettings
from backend.domain.vocabulary import RolloutStatus
from backend.environments.tables import EnvironmentVersion
from backend.results.figures import rule_of
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.tables import Run
from backend.studies.tables import EffortReply, Study, StudyCheckpoint

TOLERANCE = 1e-6
"""Rewards are stored in single precision."""
BATCH_ROWS = 200


@dataclass(frozen=True, slots=True)
class ReplyToCut:
    """The last reply of a rollout, with everything needed to continue and grade it."""

    rollout_id: uuid.UUID
    task: str
    spec: TaskSpec
    prompt: Sequence[dict[str, Any]]
    """The messages before the reply, as the policy read them."""
    reply: ReasonedReply
    steps: Sequence[dict[str, Any]]
    tokens_out: int


@dataclass(frozen=True, slots=True)
class SideWork:
    """One side of an effort study and its rollouts that are still to be cut."""

    side_id: uuid.UUID
    study_id: uuid.UUID
    run_id: uuid.UUID
    """The studied run, whose page shows the progress."""
    checkpoint_id: uuid.UUID | None
    settings: EffortSettings
    fractions: tuple[float, ...]
    seed: int
    plan: EvaluationPlan
    manifest: Manifest
    content_hash: str
    files: dict[str, str]
    rule: SuccessRule
    waiting: tuple[uuid.UUID, ...]

    def worth(self, reward: float, columns: Mapping[str, float]) -> float:
        """Return the value of an answer, from 0 to 1."""
        if self.settings.measure is EffortMeasure.REWARD:
            low, high = possible_rewards(self.manifest.columns)
            return min(1.0, max(0.0, (reward - low) / (high - low))) if high > low else 0.0
        value = reward if self.rule.column == REWARD else columns.get(self.rule.column, 0.0)
        return float(value >= self.rule.at_least - TOLERANCE)


def load_side_work(side_id: uuid.UUID) -> SideWork:
    """Choose the replies to cut and store their number. Curves that are stored already are kept.

    One reply of each task that both sides solved comes first, then further replies of these tasks, then other tasks.
    """
    with transaction() as session:
        side = session.get_one(StudyCheckpoint, side_id, with_for_update=True)
        study = session.get_one(Study, side.study_id)
        settings = study.effort_settings
        played = session.get_one(Run, side.run_id)
        version = session.get_one(EnvironmentVersion, study.version_id, options=[undefer(EnvironmentVersion.files)])
        manifest = Manifest.model_validate(version.manifest)
        if settings.measure is EffortMeasure.REWARD:  # the upper half counts as successful
            rule = SuccessRule(REWARD, sum(possible_rewards(manifest.columns)) / 2)
        else:
            rule = rule_of(played, manifest)
        side.succeeded, candidates = _cuttable_rollouts(session, played, manifest, rule)
        is_completed = Rollout.run_id == played.id, Rollout.status == RolloutStatus.COMPLETED
        side.rollouts = session.scalar(select(func.count()).select_from(Rollout).where(*is_completed)) or 0
        side.reasoned = len(candidates)
        is_other = StudyCheckpoint.study_id == study.id, StudyCheckpoint.id != side.id
        other = session.scalars(
            select(Run).join(StudyCheckpoint, StudyCheckpoint.run_id == Run.id).where(*is_other)
        ).first()
        common = {task for _, _, task, _ in _cuttable_rollouts(session, other, manifest, rule)[1]} if other else set()
        ranks: Counter[str] = Counter()
        ranked = []
        for index, _, task, rollout_id in sorted(candidates):
            ranks[task] += 1
            ranked.append((task not in common, ranks[task], index, rollout_id))
        chosen = [rollout_id for *_, rollout_id in sorted(ranked, key=lambda row: row[:3])[: settings.replies]]
        side.chosen = len(chosen)
        done = set(session.scalars(select(EffortReply.rollout_id).where(EffortReply.study_checkpoint_id == side.id)))
        announce(session, run_topic(study.run_id))
        return SideWork(
            side_id=side.id,
            study_id=study.id,
            run_id=study.run_id,
            checkpoint_id=side.checkpoint_id,
            settings=settings,
            fractions=cut_points(settings.cuts),
            seed=played.seed,
            plan=EvaluationPlan.model_validate(played.configuration),
            manifest=manifest,
            content_hash=version.content_hash,
            files=version.files,
            rule=rule,
            waiting=tuple(rollout_id for rollout_id in chosen if rollout_id not in done),
        )


def _cuttable_rollouts(
    session: Session, played: Run, manifest: Manifest, rule: SuccessRule
) -> tuple[int, list[tuple[int, int, str, uuid.UUID]]]:
    """The number of successful rollouts; and (task index, member, task, id) of those whose last reply reasons."""
    lowest = rule.at_least - TOLERANCE
    if rule.column == REWARD:
        is_successful = Rollout.reward >= lowest
    else:
        is_successful = Rollout.columns[played.columns.index(rule.column) + 1] >= lowest
    statement = _episodes().where(Rollout.run_id == played.id, Rollout.status == RolloutStatus.COMPLETED, is_successful)
    succeeded = 0
    cuttable: list[tuple[int, int, str, uuid.UUID]] = []
    for row in session.execute(statement.execution_options(yield_per=BATCH_ROWS)):
        succeeded += 1
        if _last_reply(manifest, row.messages, row.steps) is not None:
            task = f"{row.Task.split}/{row.Task.index}"
            cuttable.append((row.Task.index, row.member, task, row.id))
    return succeeded, cuttable


def _episodes() -> Select[uuid.UUID, int, list[dict[str, Any]], list[dict[str, Any]], int, Task]:
    return (
        select(Rollout.id, Rollout.member, Rollout.messages, Rollout.steps, Rollout.tokens_out, Task)
        .join(Group, Group.id == Rollout.group_id)
        .join(Task, Task.id == Group.task_id)
    )


def _last_reply(
    manifest: Manifest, messages: Sequence[Mapping[str, object]], steps: Sequence[Mapping[str, object]]
) -> tuple[int, ReasonedReply] | None:
    """The index of the last reply in the conversation, and the reply; None if it does not reason.

    Only the last reply can be cut: everything before it is replayed, and nothing after it has to be played.
    """
    if not steps or steps[-1].get("action") is None:
        return None
    index = max((at for at, message in enumerate(messages) if message.get("role") == "assistant"), default=None)
    if index is None:
        return None
    content, reasoning = messages[index].get("content"), messages[index].get("reasoning")
    reply = split_reply(manifest.proctor.agent, str(content or ""), str(reasoning or ""))
    return (index, reply) if reply is not None else None


def read_reply(work: SideWork, rollout_id: uuid.UUID) -> ReplyToCut | None:
    """Read the reply to cut; None if its rollout was deleted meanwhile."""
    with transaction() as session:
        row = session.execute(_episodes().where(Rollout.id == rollout_id)).one_or_none()
    last = _last_reply(work.manifest, row.messages, row.steps) if row else None
    if row is None or last is None:
        return None
    index, reply = last
    task = row.Task
    return ReplyToCut(
        rollout_id=row.id,
        task=f"{task.split}/{task.index}",
        spec=TaskSpec(task.split, task.index, task.level, task.seed, task.arguments),
        prompt=visible_messages(work.plan.context or work.manifest.proctor.agent.context, row.messages[:index]),
        reply=reply,
        steps=row.steps,
        tokens_out=row.tokens_out,
    )


def store_curve(work: SideWork, cut: ReplyToCut, curve: ReplyCurve) -> None:
    with transaction() as session:
        session.add(
            EffortReply(
                id=new_id(),
                study_checkpoint_id=work.side_id,
                rollout_id=cut.rollout_id,
                task=curve.task,
                characters=len(cut.reply.reasoning),
                values=list(curve.values),
                score=curve.score,
            )
        )
        announce(session, run_topic(work.run_id))


def is_stopped(work: SideWork) -> bool:
    """Return whether the study was stopped or deleted."""
    with transaction() as session:
        study = session.get(Study, work.study_id)
        return study is None or study.status.is_over


def finish_side(work: SideWork) -> None:
    with transaction() as session:
        session.get_one(StudyCheckpoint, work.side_id).is_done = True
        announce(session, run_topic(work.run_id))
