"""Replay stored rollouts on a version, after proving that the stored rewards can be reproduced."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

from backend.domain.rollouts.divergence import same_columns
from backend.domain.vocabulary import ErrorKind, RunKind, RunStatus
from workers.environments.client import EnvHost, HostRefused
from workers.rollouts.engine import TooManyFailures
from workers.rollouts.limits import unless_stopped
from workers.rollouts.regrading import ReplayedEpisode, StoredEpisode, environment_columns, replay_episodes
from workers.storage.env_host import open_env_host
from workers.storage.recorder import RunRecorder
from workers.storage.regraded_rollouts import (
    NO_REPLIES,
    RegradedRollout,
    RegradingRule,
    failed_copy,
    needs_conversation,
    regrade_episode,
    replay_episode,
    store_copies,
)
from workers.storage.regrading import PlayableVersion, RegradingEnd, RegradingWork, SourcePage

Replay = Callable[[Sequence[StoredEpisode]], Awaitable[list[ReplayedEpisode]]]
REPLAYED = "The stored replies were replayed. Each rollout shows where it diverges."


class RegradingReplay:
    """One attempt at regrading by another version's rewards, or at a replay."""

    def __init__(self, work: RegradingWork, recorder: RunRecorder, total: int) -> None:
        self.work, self.recorder, self.total = work, recorder, total
        self.done = 0
        self.grounds = REPLAYED
        self.rule = RegradingRule(
            columns=work.target.manifest.column_names,
            version=work.target.name,
            noise=max(version.manifest.proctor.checks.noise for version in (work.own, work.target)),
            accepts_divergence=bool(work.plan.override),
        )

    async def run(self) -> RegradingEnd:
        try:
            end = await unless_stopped(self._run(), self.recorder.should_stop)
        except HostRefused as error:
            return RegradingEnd(RunStatus.FAILED, f"{self.work.target.name} cannot be played: {error}", self.grounds)
        except TooManyFailures as error:
            return RegradingEnd(RunStatus.PAUSED, f"Paused because too many rollouts failed. {error}", self.grounds)
        return end or RegradingEnd(RunStatus.STOPPED, "Stopped on request.", self.grounds)

    async def _run(self) -> RegradingEnd:
        async with open_env_host() as host:
            if self.work.kind is RunKind.RESCORE and (refusal := await self._prove_faithful(host)):
                return RegradingEnd(RunStatus.FAILED, refusal, self.grounds)
            self._report("preparing the environment")
            async with self._replayer(host, self.work.target) as replay:
                await self._play_pages(replay)
        return RegradingEnd(RunStatus.COMPLETED, grounds=self.grounds)

    async def _prove_faithful(self, host: EnvHost) -> str | None:
        """Replay a sample on its own version. Returns why regrading would not be faithful, None if it is or overridden.

        Versions that are not certified must also give the same columns twice.
        """
        work = self.work
        self._report("reproducing the stored rewards")
        sample = await asyncio.to_thread(work.source.sample)
        if not sample:
            return "There is no completed rollout with stored replies."
        try:
            async with self._replayer(host, work.own) as replay:
                replayed = await replay(sample)
        except HostRefused as error:
            is_faithful = work.is_certified
            self.grounds = f"{work.own.name} does not start any more ({error})."
            if is_faithful:
                self.grounds += " The certificates of both versions say that stored episodes earn the same again."
        else:
            same = 0
            for each in replayed:
                stored = environment_columns(work.own.manifest, each.episode.columns)
                same += each.rollout.is_completed and same_columns(stored, each.rollout.columns, self.rule.noise)
            is_faithful = same == len(sample)
            self.grounds = f"{same} of {len(sample)} sampled rollouts gave the stored rewards on {work.own.name}."
            if is_faithful and not work.is_certified and work.own is not work.target:
                async with self._replayer(host, work.target) as replay:
                    first = {each.episode.id: each.rollout for each in await replay(sample)}
                    pairs = [(first[each.episode.id], each.rollout) for each in await replay(sample)]
                twice = sum(
                    one.is_completed
                    and other.is_completed
                    and same_columns(one.columns, other.columns, self.rule.noise)
                    for one, other in pairs
                )
                is_faithful = twice == len(sample)
                self.grounds += f" {twice} of {len(sample)} gave the same rewards twice on {work.target.name}."
        await asyncio.to_thread(self.recorder.log, self.grounds, "info" if is_faithful else "warning")
        if is_faithful or work.plan.override:
            return None
        return f"Not regraded, because it would not be faithful. {self.grounds} Give a reason to continue, or replay."

    async def _play_pages(self, replay: Replay) -> None:
        """Play a page while the page before it is stored and the next one is read."""
        pages = self.work.source.pages()
        reading = asyncio.create_task(asyncio.to_thread(next, pages, None))
        storing: asyncio.Task[None] | None = None
        try:
            while page := await reading:
                reading = asyncio.create_task(asyncio.to_thread(next, pages, None))
                replayed = await replay(page.episodes)
                if storing is not None:
                    await storing
                storing = asyncio.create_task(asyncio.to_thread(self._store, page, replayed))
        finally:
            if storing is not None:
                await storing
            await asyncio.gather(reading, return_exceptions=True)

    def _store(self, page: SourcePage, replayed: Sequence[ReplayedEpisode]) -> None:
        is_replay = self.work.kind is RunKind.REPLAY
        copies: list[RegradedRollout] = []
        if is_replay:
            copies += [replay_episode(each, page.rollouts[each.episode.id], self.rule) for each in replayed]
        else:
            needed = [each.episode.id for each in replayed if needs_conversation(each, self.rule.noise)]
            conversations = self.work.source.conversations(needed) if needed else {}
            for each in replayed:
                messages = conversations.get(each.episode.id)
                copies.append(regrade_episode(each, page.rollouts[each.episode.id], messages, self.rule))
        copies += page.failed
        empty = [page.rollouts[each.id] for each in page.episodes if not each.recorded.steps]
        copies += [failed_copy(source, ErrorKind.POLICY, NO_REPLIES) for source in empty]
        store_copies(self.work.run_id, self.work.target.version_id, copies, is_replay=is_replay)
        self.done += page.read
        self._report("replaying" if is_replay else "regrading")

    @asynccontextmanager
    async def _replayer(self, host: EnvHost, version: PlayableVersion) -> AsyncIterator[Replay]:
        """Serve a version and give a function that replays episodes on it."""
        manifest = version.manifest
        await host.prepare(version.content_hash, version.files)
        async with host.lease(version.content_hash, manifest.proctor.resources) as server:
            yield partial(replay_episodes, server=server, manifest=manifest, concurrency=self.work.plan.concurrency)

    def _report(self, phase: str) -> None:
        self.recorder.progress(phase=phase, done=self.done, total=self.total)
