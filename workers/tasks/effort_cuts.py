"""Cutting the replies of one side of an effort score: a policy answers from each cut, the environment grades."""

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Protocol

import structlog

from backend.domain.rollouts.divergence import RecordedEpisode
from backend.domain.studies.effort import Reasoned, Scored, area, graded_reply
from workers.environments.client import EnvServer
from workers.rollouts.regrading import StoredEpisode, replay_episodes
from workers.storage.effort import Chosen, SideWork, finish, read_chosen, should_stop, store
from workers.storage.env_host import open_env_host
from workers.tasks.event_loops import run_async

CONCURRENCY = 8

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """A forced answer."""

    prefix: str
    """What it goes on from."""
    text: str


class Answerer(Protocol):
    """A policy that can go on from the middle of its own reply."""

    def __call__(
        self,
        prompt: Sequence[dict[str, Any]],
        said: Reasoned,
        fractions: Sequence[float],
        *,
        samples: int,
        most_tokens: int,
        seed: int,
    ) -> list[list[Answer]]:
        """So many answers at each fraction. None at one where prompt and reasoning leave no room."""


def cut_side(work: SideWork, answer: Answerer) -> None:
    """All that waits, one reply after the other; a stop is heeded in between. Needs no running event loop."""
    run_async(_cut(work, answer))


async def _cut(work: SideWork, answer: Answerer) -> None:
    if work.waiting:
        async with open_env_host() as host:
            await host.prepare(work.content_hash, work.files)
            async with host.lease(work.content_hash, work.manifest.proctor.resources) as server:
                for number, rollout_id in enumerate(work.waiting):
                    if await asyncio.to_thread(should_stop, work):
                        return
                    await _cut_reply(work, answer, server, rollout_id)
                    logger.info("reply cut", done=number + 1, total=len(work.waiting))
    await asyncio.to_thread(finish, work)


async def _cut_reply(work: SideWork, answer: Answerer, server: EnvServer, rollout_id: uuid.UUID) -> None:
    chosen = await asyncio.to_thread(read_chosen, work, rollout_id)
    if chosen is None:
        return
    answers = await asyncio.to_thread(
        answer,
        chosen.prompt,
        chosen.said,
        work.fractions,
        samples=work.samples,
        most_tokens=work.plan.sampling.max_tokens_per_turn,
        seed=work.seed ^ chosen.spec.seed,
    )
    spec = work.manifest.proctor.agent.action
    replies = [[graded_reply(chosen.said, spec, each.prefix, each.text) for each in some] for some in answers]
    worth = await _graded(work, chosen, sorted({reply for some in replies for reply in some}), server)
    values = [[worth[reply] for reply in some if reply in worth] for some in replies]
    if not all(values):
        logger.warning("a cut could not be graded", rollout_id=str(rollout_id))
        return
    means = tuple(fmean(some) for some in values)
    await asyncio.to_thread(store, work, chosen, Scored(chosen.task, means, area(work.fractions, means)))


async def _graded(work: SideWork, chosen: Chosen, replies: Sequence[str], server: EnvServer) -> dict[str, float]:
    """What each reply is worth in the place of the last one; what failed is left out. An episode ends there."""
    *before, last = chosen.steps
    episodes = {uuid.uuid4(): reply for reply in replies}
    stored = [
        StoredEpisode(
            key,
            chosen.spec,
            RecordedEpisode({}, [*before, {**last, "reply": reply, "calls": None}]),
            tokens_out=chosen.tokens_out,
        )
        for key, reply in episodes.items()
    ]
    played = await replay_episodes(stored, server=server, manifest=work.manifest, concurrency=CONCURRENCY)
    return {
        episodes[each.episode.id]: work.value(each.rollout.reward, each.rollout.columns)
        for each in played
        if each.rollout.reward is not None
    }
