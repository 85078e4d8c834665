"""Episodes that several policies play. Each seat plays an ordinary `Episode` on one shared session of the environment.

The session belongs to the seat that the latest observation names: its action is sent, and the other seats wait in their
own `reset` or `step` until one of them is named or the episode ends. So a seat's conversation, tokens and masks hold
only its own turns, and its step is rewarded for everything that happened until its next turn.

An environment sends the reward columns of the seat that acted in `metadata.rewards`, as if it were alone, and those
of other seats in `metadata.seats`: {seat: {column: value}}. A seat that stops before the episode ends gives up: its
outcome column gets the lowest value of its range, those of the others the highest, and the episode ends.
"""

import asyncio
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from backend.domain.environments.manifest import Manifest
from backend.domain.errors import EnvError, RolloutError
from backend.domain.policies.prices import Price, cost_of
from backend.domain.rollouts.rollout import Rollout, SeatPlay, Seats
from backend.domain.vocabulary import Phase, RolloutStatus
from workers.policies.base import EpisodeStart, Player, Policy
from workers.policies.scripted import ScriptedPolicy
from workers.rollouts.episode import CallResult, Episode, Session, merge_rewards
from workers.rollouts.limits import ObservationBudget, first_rollout_error

if TYPE_CHECKING:
    from workers.environments.client import Observation

MATCH_SCORE = "match_score"
"""Metric of episodes with seats: 1 for a win, 0.5 for a draw, 0 for a loss."""
LARGEST_REWARD = 3.4e38


class UnknownSeat(EnvError):
    """The environment names a seat that its manifest does not declare."""

    is_retryable = False


class NeverSeated(EnvError):
    """The episode ended before a seat had a turn."""

    is_retryable = False


@dataclass(frozen=True, slots=True)
class SeatPolicy:
    """A policy for a seat other than the rollout's own."""

    name: str
    policy: Policy
    price: Price | None = None
    max_turns: int | None = None
    """Default: the manifest's."""


@dataclass(frozen=True, slots=True)
class SeatAssignment:
    seat: str
    """The seat of the rollout's own policy."""
    others: Mapping[str, SeatPolicy] = field(default_factory=dict)
    """The manifest's script takes seats that are missing here."""


AssignSeats = Callable[[Rollout], SeatAssignment]


def own_seat(manifest: Manifest, rollout: Rollout) -> str:
    """The seat that a rollout's policy takes: the members of a group take turns, so that a task is played from every
    seat. In training all members have the same seat, because they are compared with each other."""
    assert manifest.proctor.seats is not None
    names, turn = manifest.proctor.seats.names, rollout.task.index // manifest.proctor.tasks.levels
    if rollout.phase is not Phase.TRAIN:
        turn += rollout.member
    return names[turn % len(names)]


async def play_episode(
    manifest: Manifest,
    action_schema: dict[str, Any],
    session: Session,
    rollout: Rollout,
    policy: Policy,
    start: EpisodeStart,
    assign: AssignSeats | None = None,
) -> None:
    """Play an episode and fill the rollout. `assign`: who takes the seats, if the environment has any.

    Raises RolloutError; the turns so far are kept.
    """
    if manifest.proctor.seats is None:
        await Episode(manifest, action_schema, session, rollout).play(policy, start)
        return
    assigned = SeatAssignment(own_seat(manifest, rollout)) if assign is None else assign(rollout)
    script = manifest.proctor.seats.others
    table, budget = _Table(session, manifest, assigned.seat), ObservationBudget()
    others: dict[str, tuple[SeatPolicy, Rollout]] = {}

    async def play_other(episode: SeatEpisode, taken: SeatPolicy) -> None:
        digest = hashlib.blake2b(f"{start.seed}/{episode.seat}".encode(), digest_size=8).digest()
        seed = int.from_bytes(digest) >> 1
        try:
            await episode.play(taken.policy, replace(start, manifest=episode.manifest, seed=seed, seat=episode.seat))
        except NeverSeated:
            pass
        except RolloutError as error:
            raise type(error)(f"seat {episode.seat} ({taken.name}): {error}") from error

    try:
        with first_rollout_error():
            async with asyncio.TaskGroup() as seats:
                own = SeatEpisode(table, assigned.seat, manifest, action_schema, rollout, budget)
                seats.create_task(own.play(policy, replace(start, seat=assigned.seat)))
                for name in manifest.proctor.seats.names:
                    if name == assigned.seat:
                        continue
                    taken = assigned.others.get(name) or SeatPolicy(script, ScriptedPolicy(script))
                    place = Rollout(rollout.task, rollout.phase, rollout.group, rollout.member, RolloutStatus.FAILED)
                    others[name] = taken, place
                    limited = manifest.with_max_turns(taken.max_turns) if taken.max_turns else manifest
                    episode = SeatEpisode(table, name, limited, action_schema, place, budget)
                    seats.create_task(play_other(episode, taken))
    finally:
        plays = [_seat_play(name, taken, played) for name, (taken, played) in others.items()]
        rollout.seats = Seats(assigned.seat, plays, table.order)
    column = manifest.proctor.outcome_column
    lowest = column.range[0] if column.range else -math.inf
    mine = rollout.columns.get(column.name, lowest)
    best = max(play.columns.get(column.name, lowest) for play in plays)
    rollout.seats.score = 1.0 if mine > best else 0.5 if mine == best else 0.0
    rollout.metrics[MATCH_SCORE] = rollout.seats.score


def _seat_play(seat: str, taken: SeatPolicy, played: Rollout) -> SeatPlay:
    names = ("columns", "reward", "stop_reason", "steps", "messages", "tokens_in", "tokens_out", "tokens")
    play = SeatPlay(seat, taken.name, **{name: getattr(played, name) for name in names})
    if taken.price is not None:
        play.cost = cost_of(taken.price, played.tokens_in, played.tokens_out, played.tokens_cached)
    return play


class _Table:
    """The shared session, and whose turn it is."""

    def __init__(self, session: Session, manifest: Manifest, first: str) -> None:
        """`first`: the seat that resets the environment."""
        assert manifest.proctor.seats is not None
        self.session, self.spec, self.columns = session, manifest.proctor.seats, manifest.columns
        self.outcome = manifest.proctor.outcome_column
        self.first = first
        self.order: list[str] = []
        self.turn: str | None = None
        self.episodes: list[SeatEpisode] = []
        self._latest: Observation | None = None
        self._is_over = False
        self._ending = ""
        self._earned: dict[str, list[dict[str, float]]] = {name: [] for name in self.spec.names}
        """Reward columns since the seat's last turn."""
        self._changed = asyncio.Condition()

    async def open(self, episode: "SeatEpisode", arguments: Mapping[str, object], timeout: float) -> "Observation":
        if episode.seat == self.first:
            await self._take(await self.session.reset(arguments, timeout=timeout))
        observation = await self._wait(episode)
        if observation.done and self._ending:
            raise NeverSeated(f"the seat {episode.seat} never had a turn: {self._ending}")
        self._earned[episode.seat].append(observation.rewards)  # for its first step
        return observation

    async def act(self, episode: "SeatEpisode", action: Mapping[str, object], timeout: float) -> "Observation":
        answer = await self.session.step(action, timeout=timeout)
        self.order.append(episode.seat)
        self._earned[episode.seat].append(answer.rewards)
        for name, columns in self._read_columns(answer.metadata.get("seats")).items():
            if name != episode.seat:
                self._earned[name].append(columns)
        await self._take(answer)
        return await self._wait(episode)

    async def _wait(self, episode: "SeatEpisode") -> "Observation":
        """Wait for the seat's next turn; return the latest observation with the rewards since its last one."""
        start, seat = perf_counter(), episode.seat
        async with self._changed:
            while not self._is_over and self.turn != seat:
                if self.turn is not None:
                    episode.waiting_for = f"the seat {self.turn}"
                await self._changed.wait()
        episode.waited += perf_counter() - start
        assert self._latest is not None
        rewards, self._earned[seat] = merge_rewards(self.columns, self._earned[seat]), []
        return replace(self._latest, rewards=rewards, done=self._is_over)

    async def give_up(self, seat: str) -> dict[str, float]:
        """End the episode, because a seat will not act again. Returns the reward columns that this costs it."""
        if self._is_over or self.outcome.range is None:
            return {}
        lowest, highest = self.outcome.range
        for name in self.spec.names:
            if name != seat:
                self._earned[name].append({self.outcome.name: highest})
        actions = self.order.count(seat)
        self._ending = f"the seat {seat} gave up after {actions} action{'' if actions == 1 else 's'}"
        async with self._changed:
            self._is_over = True
            self._changed.notify_all()
        return {self.outcome.name: lowest}

    async def _take(self, answer: "Observation") -> None:
        """Make an observation the latest one, and wake the seat that it names."""
        named = answer.fields.get(self.spec.turn)
        if not answer.done and named not in self.spec.names:
            problem = "has no field" if named is None else f"names the seat {str(named)[:80]!r} in"
            declared = ", ".join(self.spec.names)
            raise UnknownSeat(f"the observation {problem} `{self.spec.turn}`; the manifest declares {declared}")
        async with self._changed:
            self._latest, self.turn, self._is_over = answer, None if answer.done else str(named), answer.done
            if answer.done and self.order:
                self._ending = f"the environment ended the episode after {len(self.order)} actions of other seats"
            self._changed.notify_all()

    def _read_columns(self, sent: object) -> dict[str, dict[str, float]]:
        """Validate `metadata.seats`. Raises EnvError."""
        if sent is None:
            return {}
        if not isinstance(sent, dict) or not all(isinstance(columns, dict) for columns in sent.values()):
            raise EnvError("metadata.seats is not an object of reward columns by seat")
        known = {column.name for column in self.columns}
        read: dict[str, dict[str, float]] = {}
        for seat, columns in sent.items():
            if seat not in self.spec.names:
                declared = ", ".join(self.spec.names)
                raise UnknownSeat(f"metadata.seats has the seat {str(seat)[:80]!r}; the manifest declares {declared}")
            read[seat] = {}
            for name in known & columns.keys():
                value = columns[name]
                if not isinstance(value, int | float) or not -LARGEST_REWARD <= value <= LARGEST_REWARD:
                    raise EnvError(f"metadata.seats: {seat}.{name} is {str(value)[:80]!r}, not a finite number")
                read[seat][name] = float(value)
        return read


class SeatEpisode(Episode):
    """One seat's part. It is its own session, which passes actions to the table and waits for its turns."""

    def __init__(
        self,
        table: _Table,
        seat: str,
        manifest: Manifest,
        action_schema: dict[str, Any],
        rollout: Rollout,
        budget: ObservationBudget,
    ) -> None:
        super().__init__(manifest, action_schema, self, rollout)
        self.table, self.seat = table, seat
        self._budget = budget  # of all seats together
        self.waited = 0.0
        """Seconds of the current request in which other seats acted."""
        table.episodes.append(self)

    async def reset(self, arguments: Mapping[str, object], *, timeout: float) -> "Observation":
        return await self.table.open(self, arguments, timeout)

    async def step(self, action: Mapping[str, object], *, timeout: float) -> "Observation":
        return await self.table.act(self, action, timeout)

    async def state(self, *, timeout: float) -> dict[str, Any]:
        return await self.table.session.state(timeout=timeout)

    async def _enter(self, policy: Policy, start: EpisodeStart) -> Player:
        """Begin the player before the seat's first turn, so that a policy does not wait for one that never comes."""
        player = await self._begin(policy, start)
        try:
            await self._open()
        except BaseException:
            player.close()
            raise
        return player

    async def _open(self) -> None:
        await super()._open()
        self._exclude_wait()

    async def _step(self, action: dict[str, Any]) -> CallResult:
        result = await super()._step(action)
        result.seconds -= self._exclude_wait()
        return result

    def _exclude_wait(self) -> float:
        """Count the time that this seat waited for the others as time in a queue, not in the environment."""
        waited, self.waited = self.waited, 0.0
        self.rollout.environment_seconds -= waited
        self.rollout.queue_seconds += waited
        return waited

    async def _give_up(self) -> None:
        rewards = await self.table.give_up(self.seat)
        if self.rollout.steps:
            self.rollout.steps[-1].rewards |= rewards

    @contextmanager
    def _paused_deadline(self) -> Iterator[None]:
        """While one seat's request is queued, the deadlines of all seats pause."""
        with ExitStack() as stack:
            for episode in self.table.episodes:
                stack.enter_context(Episode._paused_deadline(episode))
            yield
