"""Stored episodes played again on a server: the replies there are, no policy, as fast as the engine goes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING
from uuid import UUID

from backend.domain.environments.manifest import PLATFORM_COLUMNS, Manifest
from backend.domain.rollouts.divergence import Recorded
from backend.domain.rollouts.rollout import Rollout, TaskSpec, turns_of
from backend.domain.vocabulary import Phase, StopReason
from workers.policies.base import Reply
from workers.policies.replay import ReplayPolicy
from workers.rollouts.engine import GroupPlan, play_groups

if TYPE_CHECKING:
    from workers.environments.client import EnvServer


@dataclass(frozen=True, slots=True)
class StoredEpisode:
    """What is needed of a stored rollout to play it again, and to say what changed."""

    id: UUID
    task: TaskSpec
    recorded: Recorded = field(repr=False)
    columns: Mapping[str, float] = field(default_factory=dict)
    stop_reason: StopReason | None = None
    tokens_out: int = 0
    is_truncated: bool = False

    @property
    def replies(self) -> list[str]:
        return [str(step.get("reply") or "") for step in self.recorded.steps]


@dataclass(slots=True)
class Replayed:
    """An episode beside the stored one."""

    episode: StoredEpisode
    rollout: Rollout
    replies_ended: bool = False
    """The environment asked for another reply when there was none."""

    @property
    def replies_left(self) -> int:
        return len(self.episode.recorded.steps) - len(self.rollout.steps)


def _replies_of(episode: StoredEpisode) -> list[Reply]:
    """Tokens are stored by episode only: shared out evenly, their sum and mean are right."""
    texts = episode.replies
    each, more = divmod(episode.tokens_out, len(texts))
    replies = [Reply(text, tokens_out=each + (index < more)) for index, text in enumerate(texts)]
    replies[-1].is_truncated = episode.is_truncated
    return replies


async def replay_episodes(
    episodes: Sequence[StoredEpisode],
    *,
    server: "EnvServer",
    manifest: Manifest,
    concurrency: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Replayed]:
    """Play each of them, those with replies. An episode has as many turns as there are replies.

    Raises TooManyFailures as the engine does; returns early, with what is there, when told to stop.
    """
    played: list[Replayed] = []
    for turns, group in groupby(sorted(_with_replies(episodes), key=_turns), key=_turns):
        batch = list(group)

        def keep(rollout: Rollout, batch: Sequence[StoredEpisode] = batch) -> None:
            played.append(_beside(batch[rollout.member], rollout, manifest))

        await play_groups(
            [GroupPlan(episode.task, number, (number,)) for number, episode in enumerate(batch)],
            server=server,
            policy=_reciting(batch),
            manifest=_with_turns(manifest, turns),
            phase=Phase.EVALUATION,
            seed=0,
            concurrency=concurrency,
            on_rollout=keep,
            should_stop=should_stop,
        )
    return played


def _reciting(batch: Sequence[StoredEpisode]) -> ReplayPolicy:
    """Each player recites the replies of the episode whose number is its member."""
    return ReplayPolicy(lambda start: _replies_of(batch[start.member]))


def environment_columns(manifest: Manifest, columns: Mapping[str, float]) -> dict[str, float]:
    """Those that the environment paid; the platform's own follow from the conversation."""
    names = set(manifest.column_names) - set(PLATFORM_COLUMNS)
    return {name: value for name, value in columns.items() if name in names}


def _beside(episode: StoredEpisode, rollout: Rollout, manifest: Manifest) -> Replayed:
    is_out = rollout.stop_reason is StopReason.MAX_TURNS and _turns(episode) < manifest.proctor.episode.max_turns
    if is_out:
        rollout.stop_reason = episode.stop_reason
    return Replayed(episode, rollout, replies_ended=is_out)


def _with_replies(episodes: Sequence[StoredEpisode]) -> Iterator[StoredEpisode]:
    return (episode for episode in episodes if episode.recorded.steps)


def _turns(episode: StoredEpisode) -> int:
    return sum(turns_of(step) for step in episode.recorded.steps)


def _with_turns(manifest: Manifest, turns: int) -> Manifest:
    most = min(turns, manifest.proctor.episode.max_turns)
    episode = manifest.proctor.episode.model_copy(update={"max_turns": most})
    return manifest.model_copy(update={"proctor": manifest.proctor.model_copy(update={"episode": episode})})
