"""Cut the replies of one side of an effort study: the policy answers from each cut, the environment grades."""

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Protocol

import structlog

from backend.domain.rollouts.divergence import RecordedEpisode
from backend.domain.studies.effort import ReasonedReply, ReplyCurve, area_under, graded_reply
from workers.environments.client import EnvServer
from workers.rollouts.regrading import StoredEpisode, replay_episodes
from workers.storage.effort import SideWork, finish_side, is_stopped, read_reply, store_curve
from workers.storage.env_host import open_env_host
from workers.tasks.execute import run_async

CONCURRENCY = 8

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ForcedAnswer:
    """A completion of a truncated reply."""

    prefix: str
    completion: str


class ReplyCompleter(Protocol):
    """A policy that can continue from the middle of its own reply."""

    def __call__(
        self,
        prompt: Sequence[dict[str, Any]],
        reply: ReasonedReply,
        fractions: Sequence[float],
        *,
        samples: int,
        max_tokens: int,
        seed: int,
    ) -> list[list[ForcedAnswer]]:
        """Return `samples` answers per fraction, or none where prompt and reasoning fill the context."""


def cut_side(work: SideWork, complete: ReplyCompleter) -> None:
    """Cut the waiting replies one after the other, until the study is stopped. Needs no running event loop."""
    run_async(_cut_side(work, complete))


async def _cut_side(work: SideWork, complete: ReplyCompleter) -> None:
    if work.waiting:
        async with open_env_host() as host:
            await host.prepare(work.content_hash, work.files)
            async with host.lease(work.content_hash, work.manifest.proctor.resources) as server:
                for number, rollout_id in enumerate(work.waiting):
                    if await asyncio.to_thread(is_stopped, work):
                        return
                    await _cut_reply(work, complete, server, rollout_id)
                    logger.info("reply cut", done=number + 1, total=len(work.waiting))
    await asyncio.to_thread(finish_side, work)


async def _cut_reply(work: SideWork, complete: ReplyCompleter, server: EnvServer, rollout_id: uuid.UUID) -> None:
    """Store the curve of a reply, unless a cut has no answer that could be graded."""
    cut = await asyncio.to_thread(read_reply, work, rollout_id)
    if cut is None:
        return
    answers = await asyncio.to_thread(
        complete,
        cut.prompt,
        cut.reply,
        work.fractions,
        samples=work.settings.samples,
        max_tokens=work.plan.sampling.max_tokens_per_turn,
        seed=work.seed ^ cut.spec.seed,
    )
    action = work.manifest.proctor.agent.action
    replies = [[graded_reply(cut.reply, action, each.prefix, each.completion) for each in at_cut] for at_cut in answers]
    # the forced reply takes the place of the last one; the episode ends after it
    *before, last = cut.steps
    episodes = {uuid.uuid4(): reply for reply in sorted({reply for at_cut in replies for reply in at_cut})}
    stored = [
        StoredEpisode(
            key,
            cut.spec,
            RecordedEpisode({}, [*before, {**last, "reply": reply, "calls": None}]),
            tokens_out=cut.tokens_out,
        )
        for key, reply in episodes.items()
    ]
    played = await replay_episodes(stored, server=server, manifest=work.manifest, concurrency=CONCURRENCY)
    worth = {
        episodes[each.episode.id]: work.worth(each.rollout.reward, each.rollout.columns)
        for each in played
        if each.rollout.reward is not None
    }
    values = [[worth[reply] for reply in at_cut if reply in worth] for at_cut in replies]
    if not all(values):
        logger.warning("a cut could not be graded", rollout_id=str(rollout_id))
        return
    means = tuple(fmean(at_cut) for at_cut in values)
    await asyncio.to_thread(store_curve, work, cut, ReplyCurve(cut.task, means, area_under(work.fractions, means)))
