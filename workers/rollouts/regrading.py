"""Replay stored episodes on a server: the stored replies, no policy, as fast as the engine can."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING
from uuid import UUID

from backend.domain.environments.manifest import PLATFORM_COLUMNS, Manifest
from backend.domain.rollouts.divergence import RecordedEpisode
from backend.domain.rollouts.rollout import Rollout, TaskSpec, turns_of
from backend.domain.vocabulary import Phase, StopReason
from workers.policies.base import EpisodeStart, Reply
from workers.policies.scripted import ReplayPolicy
from workers.rollouts.engine import GroupPlan, play_groups

if TYPE_CHECKING:
    from workers.environments.client import EnvServer


@dataclass(frozen=True, slots=True)
class StoredEpisode:
    """A stored rollout as far as it is needed to replay it and compare the result."""

    id: UUID
    task: TaskSpec
    recorded: RecordedEpisode = field(repr=False)
    columns: Mapping[str, float] = field(default_factory=dict)
    stop_reason: StopReason | None = None
    tokens_out: int = 0
    is_truncated: bool = False

    @property
    def turns(self) -> int:
        return sum(turns_of(step) for step in self.recorded.steps)

    def replies(self) -> list[Reply]:
        """The stored replies. Tokens are stored per episode: divided evenly, their sum and mean are right."""
        texts = [str(step.get("reply") or "") for step in self.recorded.steps]
        each, more = divmod(self.tokens_out, len(texts))
        replies = [Reply(text, tokens_out=each + (index < more)) for index, text in enumerate(texts)]
        replies[-1].is_truncated = self.is_truncated
        return replies


@dataclass(slots=True)
class ReplayedEpisode:
    """A replayed episode and the stored one."""

    episode: StoredEpisode
    rollout: Rollout
    replies_ended: bool = False
    """The environment needed another reply, but none was stored."""

    @property
    def replies_left(self) -> int:
        return len(self.episode.recorded.steps) - len(self.rollout.steps)


async def replay_episodes(
    episodes: Sequence[StoredEpisode],
    *,
    server: "EnvServer",
    manifest: Manifest,
    concurrency: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[ReplayedEpisode]:
    """Replay the episodes that have replies. An episode gets as many turns as it has replies.

    Raises TooManyFailures as the engine does. Returns the finished episodes early if `should_stop` is true.
    """
    replayed: list[ReplayedEpisode] = []
    by_turns = sorted((each for each in episodes if each.recorded.steps), key=lambda each: each.turns)
    for turns, group in groupby(by_turns, key=lambda each: each.turns):
        batch = list(group)
        max_turns = manifest.proctor.episode.max_turns
        limits = manifest.proctor.episode.model_copy(update={"max_turns": min(turns, max_turns)})
        limited = manifest.model_copy(update={"proctor": manifest.proctor.model_copy(update={"episode": limits})})

        def keep(rollout: Rollout, batch: Sequence[StoredEpisode] = batch, is_short: bool = turns < max_turns) -> None:
            episode = batch[rollout.member]
            replies_ended = rollout.stop_reason is StopReason.MAX_TURNS and is_short
            if replies_ended:
                rollout.stop_reason = episode.stop_reason
            replayed.append(ReplayedEpisode(episode, rollout, replies_ended))

        def replies(start: EpisodeStart, batch: Sequence[StoredEpisode] = batch) -> list[Reply]:
            return batch[start.member].replies()

        await play_groups(
            [GroupPlan(episode.task, number, (number,)) for number, episode in enumerate(batch)],
            server=server,
            policy=ReplayPolicy(replies),
            manifest=limited,
            phase=Phase.EVALUATION,
            seed=0,
            concurrency=concurrency,
            on_rollout=keep,
            should_stop=should_stop,
        )
    return replayed


def environment_columns(manifest: Manifest, columns: Mapping[str, float]) -> dict[str, float]:
    """Columns that the environment rewards; the platform's own follow from the conversation."""
    names = set(manifest.column_names) - set(PLATFORM_COLUMNS)
    return {name: value for name, value in columns.items() if name in names}
