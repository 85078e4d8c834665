"""Cut the replies of one side of an effort study: the policy answers from each cut, the environment grades."""

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import structlog
from sqlalchemy import func, select
from sqlalchemy.orm import Session, undefer

from backend.core.events import announce, topic_of
from backend.core.session import transaction
from backend.domain.environments.manifest import Manifest
from backend.domain.environments.prompts import visible_messages
from backend.domain.ids import new_id
from backend.domain.results.pass_at_k import REWARD, SuccessRule, possible_rewards
from backend.domain.rollouts.divergence import RecordedEpisode
from backend.domain.rollouts.rollout import TaskSpec
from backend.domain.runs.plans import EvaluationPlan
from backend.domain.studies import effort
from backend.domain.vocabulary import RolloutStatus
from backend.environments.tables import EnvironmentVersion
from backend.results.figures import rule_of
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.tables import Run
from backend.studies.tables import EffortReply, Study, StudyCheckpoint
from workers.environments.client import EnvServer
from workers.rollouts.engine import StoredEpisode, replay_episodes
from workers.storage.env_host import serve

CONCURRENCY = 8
TOLERANCE = 1e-6
"""Rewards are stored in single precision."""
BATCH_ROWS = 200
_EPISODES = (
    select(Rollout.id, Rollout.member, Rollout.messages, Rollout.steps, Rollout.tokens_out, Task)
    .join(Group, Group.id == Rollout.group_id)
    .join(Task, Task.id == Group.task_id)
)

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ForcedAnswer:
    """A completion of a truncated reply."""

    prefix: str
    completion: str


ReplyCompleter = Callable[..., list[list[ForcedAnswer]]]
"""A policy that can continue from the middle of its own reply. Given the prompt, the reply, the fractions of its
reasoning and `samples`, `max_tokens` and `seed`, it returns `samples` answers per fraction, or none where prompt and
reasoning fill the context."""


@dataclass(frozen=True, slots=True)
class ReplyToCut:
    """The last reply of a rollout, with everything needed to continue and grade it."""

    rollout_id: uuid.UUID
    task: TaskSpec
    prompt: Sequence[dict[str, Any]]
    """The messages before the reply, as the policy read them."""
    reply: effort.ReasonedReply
    steps: Sequence[dict[str, Any]]
    tokens_out: int


@dataclass(frozen=True, slots=True)
class SideWork:
    """One side of an effort study and its rollouts that are still to be cut."""

    side: StudyCheckpoint
    study: Study
    version: EnvironmentVersion
    seed: int
    plan: EvaluationPlan
    manifest: Manifest
    rule: SuccessRule
    waiting: tuple[uuid.UUID, ...]

    def worth(self, reward: float, columns: Mapping[str, float]) -> float:
        """Return the value of an answer, from 0 to 1."""
        if self.study.effort_settings.measure is effort.EffortMeasure.REWARD:
            low, high = possible_rewards(self.manifest.columns)
            return min(1.0, max(0.0, (reward - low) / (high - low))) if high > low else 0.0
        return float(self.rule.is_met(reward, columns))


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
        if settings.measure is effort.EffortMeasure.REWARD:  # the upper half counts as successful
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
        announce(session, topic_of("run", study.run_id))
        return SideWork(
            side=side,
            study=study,
            version=version,
            seed=played.seed,
            plan=EvaluationPlan.model_validate(played.configuration),
            manifest=manifest,
            rule=rule,
            waiting=tuple(rollout_id for rollout_id in chosen if rollout_id not in done),
        )


def _cuttable_rollouts(
    session: Session, played: Run, manifest: Manifest, rule: SuccessRule
) -> tuple[int, list[tuple[int, int, str, uuid.UUID]]]:
    """The number of successful rollouts; and (task index, member, task, id) of those whose last reply reasons."""
    is_reward = rule.column == REWARD
    value = Rollout.reward if is_reward else Rollout.columns[played.columns.index(rule.column) + 1]
    is_successful = Rollout.status == RolloutStatus.COMPLETED, value >= rule.at_least - TOLERANCE
    statement = _EPISODES.where(Rollout.run_id == played.id, *is_successful)
    succeeded = 0
    cuttable: list[tuple[int, int, str, uuid.UUID]] = []
    for row in session.execute(statement.execution_options(yield_per=BATCH_ROWS)):
        succeeded += 1
        if _last_reply(manifest, row.messages, row.steps) is not None:
            cuttable.append((row.Task.index, row.member, f"{row.Task.split}/{row.Task.index}", row.id))
    return succeeded, cuttable


def _last_reply(
    manifest: Manifest, messages: Sequence[Mapping[str, object]], steps: Sequence[Mapping[str, object]]
) -> tuple[int, effort.ReasonedReply] | None:
    """The index of the last reply in the conversation, and the reply; None if it does not reason.

    Only the last reply can be cut: everything before it is replayed, and nothing after it has to be played.
    """
    if not steps or steps[-1].get("action") is None:
        return None
    index = max((at for at, message in enumerate(messages) if message.get("role") == "assistant"), default=None)
    if index is None:
        return None
    content, reasoning = messages[index].get("content"), messages[index].get("reasoning")
    reply = effort.split_reply(manifest.proctor.agent, str(content or ""), str(reasoning or ""))
    return (index, reply) if reply is not None else None


def read_reply(work: SideWork, rollout_id: uuid.UUID) -> ReplyToCut | None:
    """Read the reply to cut; None if its rollout was deleted meanwhile."""
    with transaction() as session:
        row = session.execute(_EPISODES.where(Rollout.id == rollout_id)).one_or_none()
    last = _last_reply(work.manifest, row.messages, row.steps) if row else None
    if row is None or last is None:
        return None
    index, reply = last
    prompt = visible_messages(work.plan.context or work.manifest.proctor.agent.context, row.messages[:index])
    spec = TaskSpec(row.Task.split, row.Task.index, row.Task.level, row.Task.seed, row.Task.arguments)
    return ReplyToCut(row.id, spec, prompt, reply, row.steps, row.tokens_out)


async def cut_side(work: SideWork, complete: ReplyCompleter) -> None:
    """Cut the waiting replies one after the other, until the study is stopped or deleted."""
    if work.waiting:
        async with serve(work.version.content_hash, work.version.files, work.manifest) as server:
            for number, rollout_id in enumerate(work.waiting):
                with transaction() as session:
                    study = session.get(Study, work.study.id)
                    if study is None or study.status.is_over:
                        return
                if cut := read_reply(work, rollout_id):
                    await _cut_reply(work, complete, server, cut)
                logger.info("reply cut", done=number + 1, total=len(work.waiting))
    with transaction() as session:
        session.get_one(StudyCheckpoint, work.side.id).is_done = True
        announce(session, topic_of("run", work.study.run_id))


async def _cut_reply(work: SideWork, complete: ReplyCompleter, server: EnvServer, cut: ReplyToCut) -> None:
    """Store the curve of a reply, unless a cut has no answer that could be graded."""
    settings = work.study.effort_settings
    fractions = effort.cut_points(settings.cuts)
    answers = await asyncio.to_thread(
        complete,
        cut.prompt,
        cut.reply,
        fractions,
        samples=settings.samples,
        max_tokens=work.plan.sampling.max_tokens_per_turn,
        seed=work.seed ^ cut.task.seed,
    )
    action = work.manifest.proctor.agent.action
    replies = [
        [effort.graded_reply(cut.reply, action, each.prefix, each.completion) for each in at_cut] for at_cut in answers
    ]
    # the forced reply takes the place of the last one; the episode ends after it
    *before, last = cut.steps
    episodes = {uuid.uuid4(): reply for reply in sorted({reply for at_cut in replies for reply in at_cut})}
    recorded = {
        key: RecordedEpisode({}, [*before, {**last, "reply": reply, "calls": None}]) for key, reply in episodes.items()
    }
    stored = [StoredEpisode(key, cut.task, each, tokens_out=cut.tokens_out) for key, each in recorded.items()]
    played = await replay_episodes(stored, server=server, manifest=work.manifest, concurrency=CONCURRENCY)
    worth = {
        episodes[each.episode.id]: work.worth(each.rollout.reward, each.rollout.columns)
        for each in played
        if each.rollout.reward is not None
    }
    values = [[worth[reply] for reply in at_cut if reply in worth] for at_cut in replies]
    if not all(values):
        logger.warning("a cut could not be graded", rollout_id=str(cut.rollout_id))
        return
    means = [fmean(at_cut) for at_cut in values]
    with transaction() as session:
        session.add(
            EffortReply(
                id=new_id(),
                study_checkpoint_id=work.side.id,
                rollout_id=cut.rollout_id,
                task=cut.task.key,
                characters=len(cut.reply.reasoning),
                values=means,
                score=effort.area_under(fractions, means),
            )
        )
        announce(session, topic_of("run", work.study.run_id))
