"""What a side of an effort score reads and writes: its rollouts that succeeded and reason, and their curves."""

import uuid
from collections.abc import Collection, Mapping, Sequence
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
from backend.domain.studies.effort import EffortMeasure, Reasoned, Scored, cut_points, reasoned
from backend.domain.vocabulary import RolloutStatus
from backend.environments.tables import EnvironmentVersion
from backend.results.success_rules import rule_of
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.tables import Run
from backend.studies.tables import EffortReply, EffortScore, EffortSide

SAME = 1e-6
"""Rewards are stored in single precision."""
PARTITION = 200


@dataclass(frozen=True, slots=True)
class Candidate:
    """A rollout that succeeded and whose last reply reasons before it answers."""

    rollout_id: uuid.UUID
    task: str
    index: int
    member: int


@dataclass(frozen=True, slots=True)
class Chosen:
    """One that is to be cut."""

    rollout_id: uuid.UUID
    task: str
    spec: TaskSpec
    prompt: Sequence[dict[str, Any]]
    """What the policy read before its last reply."""
    said: Reasoned
    steps: Sequence[Mapping[str, Any]]
    tokens_out: int


@dataclass(frozen=True, slots=True)
class SideWork:
    """A side whose replies are to be cut."""

    side_id: uuid.UUID
    score_id: uuid.UUID
    run_id: uuid.UUID
    """At whose page it is shown."""
    checkpoint_id: uuid.UUID | None
    fractions: tuple[float, ...]
    samples: int
    seed: int
    plan: EvaluationPlan
    manifest: Manifest
    content_hash: str
    files: dict[str, str]
    rule: SuccessRule
    measure: EffortMeasure
    waiting: tuple[uuid.UUID, ...]
    """Rollouts that are still to be cut."""

    def value(self, reward: float, columns: Mapping[str, float]) -> float:
        """What an answer is worth, from 0 to 1."""
        if self.measure is EffortMeasure.REWARD:
            low, high = possible_rewards(self.manifest.columns)
            return min(1.0, max(0.0, (reward - low) / (high - low))) if high > low else 0.0
        got = reward if self.rule.column == REWARD else columns.get(self.rule.column, 0.0)
        return float(got >= self.rule.at_least - SAME)


def take_up(side_id: uuid.UUID) -> SideWork:
    """Choose what is cut, tasks that the other side solved first, and count it. What was cut before is kept."""
    with transaction() as session:
        side = session.get_one(EffortSide, side_id, with_for_update=True)
        score = session.get_one(EffortScore, side.score_id)
        played = session.get_one(Run, side.run_id)
        version = session.get_one(EnvironmentVersion, score.version_id, options=[undefer(EnvironmentVersion.files)])
        manifest = Manifest.model_validate(version.manifest)
        rule = _rule(played, manifest, score.measure)
        side.played, side.succeeded, candidates = _candidates(session, played, manifest, rule)
        side.reasoned = len(candidates)
        chosen = _chosen(candidates, _tasks_of_other(session, side, manifest, rule), score.replies)
        side.chosen = len(chosen)
        done = set(session.scalars(select(EffortReply.rollout_id).where(EffortReply.side_id == side.id)))
        announce(session, run_topic(score.run_id))
        return SideWork(
            side_id=side.id,
            score_id=score.id,
            run_id=score.run_id,
            checkpoint_id=side.checkpoint_id,
            fractions=cut_points(score.cuts),
            samples=score.samples,
            seed=played.seed,
            plan=EvaluationPlan.model_validate(played.configuration),
            manifest=manifest,
            content_hash=version.content_hash,
            files=version.files,
            rule=rule,
            measure=score.measure,
            waiting=tuple(each.rollout_id for each in chosen if each.rollout_id not in done),
        )


def _rule(played: Run, manifest: Manifest, measure: EffortMeasure) -> SuccessRule:
    """Which rollouts succeeded: by reward, those of the upper half."""
    if measure is EffortMeasure.REWARD:
        return SuccessRule(REWARD, sum(possible_rewards(manifest.columns)) / 2)
    return rule_of(played, manifest)


def _candidates(
    session: Session, played: Run, manifest: Manifest, rule: SuccessRule
) -> tuple[int, int, list[Candidate]]:
    """(completed rollouts, those that succeeded, those of them that reason)"""
    completed = Rollout.run_id == played.id, Rollout.status == RolloutStatus.COMPLETED
    count = session.scalar(select(func.count()).select_from(Rollout).where(*completed)) or 0
    value: Any = Rollout.reward
    if rule.column != REWARD:
        value = Rollout.columns[played.columns.index(rule.column) + 1]
    succeeded = 0
    found: list[Candidate] = []
    statement = _episodes().where(*completed, value >= rule.at_least - SAME)
    for row in session.execute(statement.execution_options(yield_per=PARTITION)):
        succeeded += 1
        if _last_reply(manifest, row.messages, row.steps) is not None:
            found.append(Candidate(row.id, f"{row.Task.split}/{row.Task.index}", row.Task.index, row.member))
    return count, succeeded, found


def _tasks_of_other(session: Session, side: EffortSide, manifest: Manifest, rule: SuccessRule) -> set[str]:
    is_other = EffortSide.score_id == side.score_id, EffortSide.id != side.id
    other = session.scalars(select(Run).join(EffortSide, EffortSide.run_id == Run.id).where(*is_other)).first()
    return {each.task for each in _candidates(session, other, manifest, rule)[2]} if other else set()


def _chosen(candidates: Sequence[Candidate], common: Collection[str], most: int) -> list[Candidate]:
    """One of each task that both solved, then further ones of them, then others."""
    ranks: dict[str, int] = {}
    ranked = []
    for each in sorted(candidates, key=lambda each: (each.index, each.member)):
        rank = ranks[each.task] = ranks.get(each.task, -1) + 1
        ranked.append((each.task not in common, rank, each.index, each))
    return [each for *_, each in sorted(ranked, key=lambda row: row[:3])[:most]]


def _episodes() -> Select[Any]:
    return (
        select(Rollout.id, Rollout.member, Rollout.messages, Rollout.steps, Rollout.tokens_out, Task)
        .join(Group, Group.id == Rollout.group_id)
        .join(Task, Task.id == Group.task_id)
    )


def _last_reply(
    manifest: Manifest, messages: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]]
) -> tuple[int, Reasoned] | None:
    """Where the last reply stands in the conversation, taken apart; None where it does not reason.

    The last one, because all before it is replayed as it was and nothing after it has to be played.
    """
    if not steps or steps[-1].get("action") is None:
        return None
    place = max((at for at, each in enumerate(messages) if each.get("role") == "assistant"), default=None)
    if place is None:
        return None
    message = messages[place]
    said = reasoned(manifest.proctor.agent, str(message.get("content") or ""), str(message.get("reasoning") or ""))
    return (place, said) if said is not None else None


def read_chosen(work: SideWork, rollout_id: uuid.UUID) -> Chosen | None:
    """None when it was deleted meanwhile."""
    with transaction() as session:
        row = session.execute(_episodes().where(Rollout.id == rollout_id)).one_or_none()
    found = _last_reply(work.manifest, row.messages, row.steps) if row else None
    if row is None or found is None:
        return None
    place, said = found
    task = row.Task
    return Chosen(
        rollout_id=row.id,
        task=f"{task.split}/{task.index}",
        spec=TaskSpec(task.split, task.index, task.level, task.seed, task.arguments),
        prompt=visible_messages(work.plan.context or work.manifest.proctor.agent.context, row.messages[:place]),
        said=said,
        steps=row.steps,
        tokens_out=row.tokens_out,
    )


def store(work: SideWork, chosen: Chosen, found: Scored) -> None:
    with transaction() as session:
        session.add(
            EffortReply(
                id=new_id(),
                side_id=work.side_id,
                rollout_id=chosen.rollout_id,
                task=found.task,
                characters=len(chosen.said.reasoning),
                values=list(found.values),
                score=found.score,
            )
        )
        announce(session, run_topic(work.run_id))


def should_stop(work: SideWork) -> bool:
    """Nobody waits for it any more."""
    with transaction() as session:
        score = session.get(EffortScore, work.score_id)
        return score is None or score.status.is_over


def finish(work: SideWork) -> None:
    with transaction() as session:
        session.get_one(EffortSide, work.side_id).is_done = True
        announce(session, run_topic(work.run_id))
