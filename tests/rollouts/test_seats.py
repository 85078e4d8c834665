"""Episodes that several policies play: whose turn it is, what each seat reads and earns, and who gives up."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from backend.domain.environments.manifest import Manifest, ManifestInvalid, read_manifest
from backend.domain.rollouts.divergence import RecordedEpisode
from backend.domain.rollouts.rollout import Rollout
from backend.domain.vocabulary import ErrorKind, Phase, StopReason
from tests.rollouts.world import Replies, make_manifest, plans, play
from workers.environments.client import Observation
from workers.policies.base import EpisodeStart, Player, Policy, Reply, Turn
from workers.rollouts.engine import StoredEpisode, replay_episodes
from workers.rollouts.seats import SeatAssignment, SeatPolicy

SEATS = ("left", "right")


@dataclass(slots=True)
class Race:
    """A server of a game: seats add to a shared total by turns, and the first to reach the target wins.

    `named`: what the observation says about the turn, by number of actions; default: the seats alternate.
    """

    target: int = 4
    named: Mapping[int, object] = field(default_factory=dict)
    sent: object = None
    """`metadata.seats` instead of the true columns."""
    sessions: int = 64
    action_schema: dict[str, Any] = field(
        default_factory=lambda: {"type": "object", "properties": {"add": {"type": "integer"}}}
    )

    @asynccontextmanager
    async def session(self) -> AsyncIterator["RaceSession"]:
        yield RaceSession(self)


class RaceSession:
    def __init__(self, race: Race) -> None:
        self.race, self.total, self.actions = race, 0, 0

    @property
    def seat(self) -> str:
        return SEATS[self.actions % 2]

    async def reset(self, arguments: Mapping[str, Any], *, timeout: float) -> Observation:
        self.total = self.actions = 0
        return self._observe()

    async def step(self, action: Mapping[str, Any], *, timeout: float) -> Observation:
        await asyncio.sleep(0)
        mover, self.total, self.actions = self.seat, self.total + action["add"], self.actions + 1
        has_won = self.total >= self.race.target
        rewards = {seat: {"win": float(has_won and seat == mover)} for seat in SEATS}
        sent = rewards if self.race.sent is None else self.race.sent
        return self._observe(rewards[mover], {"seats": sent}, done=has_won)

    async def state(self, *, timeout: float) -> dict[str, Any]:
        return {"scripts": {"gold": "<move>2</move>"}}

    def _observe(
        self, rewards: dict[str, float] | None = None, metadata: dict[str, Any] | None = None, *, done: bool = False
    ) -> Observation:
        named = self.race.named.get(self.actions, self.seat)
        fields = {"total": self.total, "target": self.race.target, "legal": [1, 2], "seat": named}
        return Observation(fields, None, done, metadata or {}, rewards or {})


def manifest_of(**proctor: Any) -> Manifest:
    return make_manifest(
        **{
            "rewards": {"win": {"weight": 1.0, "range": [0, 1]}, "format": 0.2},
            "seats": {"names": list(SEATS), "others": "gold"},
            "agent": {"observation": "{{ seat }}: {{ total }} of {{ target }}"},
            **proctor,
        }
    )


def against(policy: Policy, seat: str = "left", **options: Any) -> dict[str, Any]:
    other = SEATS[seat == "left"]
    return {"seats": lambda _: SeatAssignment(seat, {other: SeatPolicy("rival", policy, **options)})}


async def one(race: Race, policy: Policy, manifest: Manifest | None = None, **options: Any) -> Rollout:
    [rollout] = await play(race, policy, plans(1), manifest or manifest_of(), max_attempts=1, **options)  # type: ignore[arg-type]
    return rollout


async def test_each_seat_reads_and_earns_only_its_own_part() -> None:
    rival = Replies("<move>1</move>")
    rollout = await one(Race(), Replies("<move>1</move>", "<move>2</move>"), **against(rival))
    contents = [message["content"] for message in rollout.messages]
    assert contents == ["Count.", "left: 0 of 4", "<move>1</move>", "left: 2 of 4", "<move>2</move>"]
    assert rollout.columns == {"win": 1.0, "format": 1.0}
    assert [step.rewards["win"] for step in rollout.steps] == [0.0, 1.0]
    assert rollout.seats is not None
    [other] = rollout.seats.others
    assert (rollout.seats.seat, rollout.seats.order) == ("left", ["left", "right", "left"])
    assert (other.seat, other.policy, other.columns["win"]) == ("right", "rival", 0.0)
    assert [step.reply for step in other.steps] == ["<move>1</move>"]
    assert [message["content"] for message in other.messages][1:] == ["right: 1 of 4", "<move>1</move>"]
    assert other.tokens == {"prompt": [1, 2], "completion": [3, 4], "mask": [1, 0], "logprobs": [-0.5, 0.0]}
    assert rollout.metrics["match_score"] == rollout.seats.score == 1.0
    assert rollout.tokens_out == 8  # the rival's four are its own


async def test_the_seats_are_swapped_on_the_same_task_but_not_in_training() -> None:
    found = await play(Race(), Replies("<move>2</move>"), plans(2, 2), manifest_of())  # type: ignore[arg-type]
    assert [rollout.seats.seat for rollout in found if rollout.seats] == ["left", "right", "right", "left"]
    assert [rollout.columns["win"] for rollout in found] == [0.0, 1.0, 1.0, 0.0]
    trained = await play(Race(), Replies("<move>2</move>"), plans(2, 2), manifest_of(), phase=Phase.TRAIN)  # type: ignore[arg-type]
    assert [rollout.seats.seat for rollout in trained if rollout.seats] == ["left", "left", "right", "right"]


async def test_a_seat_that_gives_up_loses() -> None:
    strict = manifest_of(agent={"on_unparsable": "end"})
    beaten = await one(Race(), Replies("<move>1</move>"), strict, **against(Replies("no idea")))
    assert (beaten.columns["win"], beaten.metrics["match_score"]) == (1.0, 1.0)
    assert beaten.seats is not None
    assert beaten.seats.others[0].stop_reason is StopReason.UNPARSABLE
    lost = await one(Race(), Replies("no idea"), strict, **against(Replies("<move>1</move>"), "right"))
    assert (lost.columns["win"], lost.metrics["match_score"], lost.stop_reason) == (0.0, 0.0, StopReason.UNPARSABLE)
    assert lost.seats is not None
    assert lost.seats.others[0].columns["win"] == 1.0


@pytest.mark.parametrize(
    ("race", "problem"),
    [
        (Race(named={1: "middle"}), "names the seat 'middle' in `seat`; the manifest declares left, right"),
        (Race(named={0: ["left"]}), "names the seat"),
        (Race(named={0: None}), "has no field `seat`"),
        (Race(named=dict.fromkeys(range(99), "right"), target=99), "the seat left never had a turn: the seat right"),
        (Race(named=dict.fromkeys(range(99), "right")), "never had a turn: the environment ended the episode after 2"),
        (Race(sent={"middle": {"win": 1.0}}), "metadata.seats has the seat 'middle'"),
        (Race(sent=[1]), "metadata.seats is not an object"),
        (Race(sent={"right": {"win": "much"}}), "right.win is 'much', not a finite number"),
    ],
)
async def test_an_environment_that_errs_about_its_seats_fails_the_episode(race: Race, problem: str) -> None:
    policy = Replies("<move>2</move>")
    rollout = await one(race, policy, **against(Replies("<move>2</move>")))
    assert rollout.error_kind is ErrorKind.ENVIRONMENT
    assert (len(policy.starts), policy.closed) == (1, 1)  # begun before its first turn, and ended without one
    assert problem in (rollout.error_message or "")
    assert rollout.reward is None
    assert rollout.seats is not None  # what was played is kept


async def test_a_failing_rival_is_named() -> None:
    class Broken(Policy):
        async def begin(self, start: EpisodeStart) -> Player:
            raise RuntimeError("no weights")

    rollout = await one(Race(), Replies("<move>1</move>"), **against(Broken()))
    assert rollout.error_kind is ErrorKind.POLICY
    assert (rollout.error_message or "").startswith("seat right (rival): policy: RuntimeError: no weights")


async def test_a_rival_that_hangs_ends_the_episode_with_its_name() -> None:
    slow = manifest_of(episode={"max_turns": 8, "step_timeout_seconds": 0.1, "episode_timeout_seconds": 0.2})
    rollout = await one(Race(), Replies("<move>1</move>"), slow, **against(Replies("<move>1</move>", seconds=9)))
    assert "waiting for the seat right" in (rollout.error_message or "") or "seat right (rival)" in (
        rollout.error_message or ""
    )


async def test_a_queued_request_of_one_seat_pauses_the_deadlines_of_all() -> None:
    class Queued(Policy):
        async def begin(self, start: EpisodeStart) -> Player:
            return QueuedPlayer()

    class QueuedPlayer(Player):
        async def act(self, turn: Turn) -> Reply:
            with turn.waiting():
                await asyncio.sleep(0.3)
            return Reply("<move>1</move>")

    short = manifest_of(episode={"max_turns": 8, "step_timeout_seconds": 0.1, "episode_timeout_seconds": 0.2})
    assert (await one(Race(3), Replies("<move>1</move>"), short, **against(Queued()))).is_completed


async def test_all_seats_are_replayed() -> None:
    strict = manifest_of(agent={"on_unparsable": "end"})
    for rival in (Replies("<move>1</move>"), Replies("<move>1</move>", "no idea")):
        rollout = await one(Race(6), Replies("<move>1</move>"), strict, **against(rival, "right"))
        steps = [{"reply": step.reply} for step in rollout.steps]
        stored = StoredEpisode(
            rollout.task.version_id or __import__("uuid").uuid4(),
            rollout.task,
            RecordedEpisode(rollout.opening, steps),
            stop_reason=rollout.stop_reason,
            seats=rollout.seats,
        )
        [again] = await replay_episodes([stored], server=Race(6), manifest=strict, concurrency=4)  # type: ignore[arg-type]
        assert (again.rollout.columns, again.rollout.messages) == (rollout.columns, rollout.messages)
        assert again.rollout.seats is not None
        assert rollout.seats is not None
        assert again.rollout.seats.order == rollout.seats.order
        assert again.rollout.seats.score == rollout.seats.score


MANIFEST = """
name: race
proctor:
  agent: {action: {field: add}}
  rewards: {win: {weight: 1, range: [0, 1]}, format: 0.1}
  seats: {names: [left, right]}
"""


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("[left, right]", f"[{', '.join(f's{number}' for number in range(1000))}]", "at most 8"),
        ("[left, right]", "[left]", "at least 2"),
        ("[left, right]", "[left, left]", "two seats have the same name"),
        (", range: [0, 1]", "", "needs a `range`"),
        ("right]", "right], outcome: fame", "`fame`, which is no reward column"),
        ("right]", "right], outcome: format", "the environment must send it"),
        ("  seats", "  tasks: {grouped: true}\n  seats", "exclude each other"),
    ],
)
def test_a_manifest_with_impossible_seats_is_refused(old: str, new: str, problem: str) -> None:
    assert read_manifest(MANIFEST).proctor.seats is not None
    with pytest.raises(ManifestInvalid, match=problem):
        read_manifest(MANIFEST.replace(old, new))
