"""Plays the replies of stored rollouts on a version: first proves that the stored rewards can be had again."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

from backend.domain.rollouts.divergence import same_columns
from backend.domain.vocabulary import RunKind, RunStatus
from workers.environments.client import EnvHost, EnvServer, HostRefused
from workers.rollouts.engine import TooManyFailures
from workers.rollouts.regrading import Replayed, StoredEpisode, environment_columns, replay_episodes
from workers.rollouts.stopping import unless_stopped
from workers.storage.env_host import open_env_host
from workers.storage.recorder import RunRecorder
from workers.storage.regrading import Ending, Package, Work
from workers.storage.rescored import Rule, needs_conversation, replayed_anew, rescored, silent, still_failed
from workers.storage.rescored_rollouts import Copy, store_copies
from workers.storage.source_rollouts import Page

PLAYED_AGAIN = "Stored replies were played again; where they lead elsewhere stands on each rollout."


class Replaying:
    """One attempt at a re-score by another version's rewards, or at a replay."""

    def __init__(self, work: Work, recorder: RunRecorder, total: int) -> None:
        self.work, self.recorder, self.total = work, recorder, total
        self.done = 0
        self.grounds = PLAYED_AGAIN
        self.rule = Rule(
            columns=work.target.manifest.column_names,
            version=work.target.name,
            noise=max(work.own.manifest.proctor.checks.noise, work.target.manifest.proctor.checks.noise),
            takes_all=bool(work.plan.override),
        )

    async def go(self) -> Ending:
        try:
            ending = await unless_stopped(self._go(), self.recorder.should_stop)
        except HostRefused as error:
            return Ending(RunStatus.FAILED, f"{self.work.target.name} cannot be played: {error}", self.grounds)
        except TooManyFailures as error:
            return Ending(RunStatus.PAUSED, f"Paused because too much failed. {error}", self.grounds)
        return ending or Ending(RunStatus.STOPPED, "Stopped on request.", self.grounds)

    async def _go(self) -> Ending:
        async with open_env_host() as host:
            if self.work.kind is RunKind.RESCORE and (refused := await self._refusal(host)):
                return Ending(RunStatus.FAILED, refused, self.grounds)
            self._tell("preparing the environment")
            async with _server(host, self.work.target) as server:
                await self._play(server)
        return Ending(RunStatus.COMPLETED, grounds=self.grounds)

    async def _refusal(self, host: EnvHost) -> str | None:
        """Why scoring again would not be faithful; None when it is, or a person wants it all the same."""
        self._tell("proving the stored rewards")
        sample = await asyncio.to_thread(self.work.originals.sample)
        if not sample:
            return "There is no completed rollout with replies to score again."
        is_faithful, self.grounds = await self._prove(host, sample)
        await asyncio.to_thread(self.recorder.log, self.grounds, "info" if is_faithful else "warning")
        if is_faithful or self.work.plan.override:
            return None
        return (
            f"Not re-scored, because it would not be faithful. {self.grounds} Say why it should be done all the same,"
            " or look at a replay."
        )

    async def _prove(self, host: EnvHost, sample: Sequence[StoredEpisode]) -> tuple[bool, str]:
        own, target = self.work.own, self.work.target
        try:
            async with _server(host, own) as server:
                same = await self._count_same(server, sample)
        except HostRefused as error:
            why = f"{own.name} does not start any more ({error})"
            certified = "the certificates of both versions say that stored episodes are scored as they were"
            return self.work.is_certified, f"{why}; {certified}." if self.work.is_certified else f"{why}."
        told = f"{same} of {len(sample)} sampled rollouts gave the stored rewards on {own.name}."
        if same < len(sample) or self.work.is_certified or own is target:
            return same == len(sample), told
        async with _server(host, target) as server:
            twice = await self._count_repeatable(server, sample)
        return twice == len(sample), f"{told} {twice} of {len(sample)} gave the same twice on {target.name}."

    async def _count_same(self, server: EnvServer, sample: Sequence[StoredEpisode]) -> int:
        """How many earn again what is stored."""
        manifest = self.work.own.manifest
        played = await self._sample_on(server, sample, self.work.own)
        return sum(
            each.rollout.is_completed
            and same_columns(environment_columns(manifest, each.episode.columns), each.rollout.columns, self.rule.noise)
            for each in played
        )

    async def _count_repeatable(self, server: EnvServer, sample: Sequence[StoredEpisode]) -> int:
        first = {each.episode.id: each for each in await self._sample_on(server, sample, self.work.target)}
        second = await self._sample_on(server, sample, self.work.target)
        return sum(_alike(first[each.episode.id], each, self.rule.noise) for each in second)

    async def _sample_on(
        self, server: EnvServer, sample: Sequence[StoredEpisode], package: Package
    ) -> Sequence[Replayed]:
        return await replay_episodes(
            sample, server=server, manifest=package.manifest, concurrency=self.work.plan.concurrency
        )

    async def _play(self, server: EnvServer) -> None:
        """While one page is played, the page before it is stored and the next one read."""
        pages = self.work.originals.pages()
        reading = asyncio.create_task(asyncio.to_thread(_next, pages))
        storing: asyncio.Task[None] | None = None
        try:
            while page := await reading:
                reading = asyncio.create_task(asyncio.to_thread(_next, pages))
                played = await replay_episodes(
                    page.episodes,
                    server=server,
                    manifest=self.work.target.manifest,
                    concurrency=self.work.plan.concurrency,
                )
                if storing is not None:
                    await storing
                storing = asyncio.create_task(asyncio.to_thread(self._store, page, played))
        finally:
            if storing is not None:
                await storing
            await asyncio.gather(reading, return_exceptions=True)

    def _store(self, page: Page, played: Sequence[Replayed]) -> None:
        is_replay = self.work.kind is RunKind.REPLAY
        copies = [*self._copies(page, played), *_without_play(page)]
        store_copies(self.work.run_id, self.work.target.version_id, copies, is_replay=is_replay)
        self.done += page.read
        self._tell("playing again" if is_replay else "scoring")

    def _copies(self, page: Page, played: Sequence[Replayed]) -> Iterator[Copy]:
        if self.work.kind is RunKind.REPLAY:
            for each in played:
                yield replayed_anew(each, page.originals[each.episode.id], self.rule)
            return
        needed = [each.episode.id for each in played if needs_conversation(each, self.rule.noise)]
        conversations = self.work.originals.conversations(needed) if needed else {}
        for each in played:
            yield rescored(each, page.originals[each.episode.id], conversations.get(each.episode.id), self.rule)

    def _tell(self, phase: str) -> None:
        self.recorder.progress(phase=phase, done=self.done, total=self.total)


@asynccontextmanager
async def _server(host: EnvHost, package: Package) -> AsyncIterator[EnvServer]:
    await host.prepare(package.content_hash, package.files)
    async with host.lease(package.content_hash, package.manifest.proctor.resources) as server:
        yield server


def _next(pages: Iterator[Page]) -> Page | None:
    return next(pages, None)


def _without_play(page: Page) -> Iterator[Copy]:
    for failed in page.failed:
        yield still_failed(failed.original, failed.error_kind, failed.error_message)
    for episode in page.episodes:
        if not episode.recorded.steps:
            yield silent(page.originals[episode.id])


def _alike(one: Replayed, other: Replayed, noise: float) -> bool:
    both = one.rollout.is_completed and other.rollout.is_completed
    return both and same_columns(one.rollout.columns, other.rollout.columns, noise)
