"""The final examination of a tic-tac-toe policy: many held-out games, counted so that no weakness stays hidden."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from scipy.stats import binomtest

from backend.domain.environments.manifest import Manifest
from backend.domain.rollouts.rollout import Rollout, task_of
from backend.domain.vocabulary import Phase, Split
from backend.environments.tables import EnvironmentVersion
from workers.models.policy import LocalPolicy
from workers.policies.base import Policy
from workers.policies.scripted import ScriptedPolicy
from workers.training.context import single_groups
from workers.training.env_pool import Arena, leased_server

FIRST_UNSEEN = 300_000
"""Held-out tasks from here on are examined by nothing else: a run's own examinations take the first ones, and whoever
looks for better settings takes those from `FIRST_OF_SEARCH` on."""
FIRST_OF_SEARCH = 99_999
OPPONENTS = ("random", "perfect")
LEVELS = (0, 2)
"""Of the environment, at which these opponents play."""
SEED = 20_260_101

Play = Callable[[Policy, int, int], list[Rollout]]
"""(policy, level, games) → its games."""


@dataclass(frozen=True, slots=True)
class Move:
    """One reply."""

    own: tuple[str, ...]
    """What the policy wrote before it: all that a player knows who does not look at the opponent."""
    board: str
    reply: str


@dataclass(frozen=True, slots=True)
class Games:
    """What a policy did against one opponent."""

    count: int
    wins: int
    draws: int
    losses: int
    losses_second: int
    """Of the losses, those in which the opponent began."""
    readable: int
    replies: int
    with_invalid: int
    boards: int
    """Distinct ones that it had to reply to."""
    sequences: int
    """Distinct games."""
    blind: float
    """Share of replies that one would have foretold from its own earlier moves alone, knowing all of these games. 1 is
    open-loop play: the opponent's moves are ignored."""

    @property
    def unfinished(self) -> int:
        return self.count - self.wins - self.draws - self.losses

    @property
    def format(self) -> float:
        return self.readable / self.replies

    @property
    def invalid(self) -> float:
        return self.with_invalid / self.count


def interval(hits: int, count: int) -> tuple[float, float]:
    """Of a share, 95 % (Wilson)."""
    found = binomtest(hits, count).proportion_ci(method="wilson")
    return float(found.low), float(found.high)


def player(version: EnvironmentVersion, arena: Arena, first_task: int = FIRST_UNSEEN) -> Play:
    """Plays held-out games of a level through the product's own engine; seeds alternate who begins."""
    manifest = Manifest.model_validate(version.manifest)

    def play(policy: Policy, level: int, games: int) -> list[Rollout]:
        levels = manifest.proctor.tasks.levels
        first = first_task - first_task % levels + level
        tasks = [task_of(manifest, Split.HELDOUT, first + levels * number) for number in range(games)]
        plans = single_groups(tasks)
        if isinstance(policy, LocalPolicy):
            return arena.play_in_lockstep(plans, policy, phase=Phase.HELDOUT, seed=SEED)
        played: list[Rollout] = []
        arena.play(plans, policy, phase=Phase.HELDOUT, seed=SEED, on_rollout=played.append)
        return played

    return play


def arena_for(version: EnvironmentVersion) -> Arena:
    manifest = Manifest.model_validate(version.manifest)
    return Arena(
        partial(leased_server, version.content_hash, dict(version.files), manifest, 1), manifest, concurrency=128
    )


def baselines() -> dict[str, Policy]:
    """What a trained policy is worth something beside."""
    named = {
        "random legal": "random",
        "the same cell always": "constant",
        "the teacher": "teacher",
        "gold play": "gold",
    }
    return {name: ScriptedPolicy(script) for name, script in named.items()}


def count_games(rollouts: Sequence[Rollout]) -> Games:
    """Everything that the table shows. A failed rollout is an error of this machine, not a game."""
    failed = [rollout for rollout in rollouts if not rollout.is_completed]
    if failed:
        raise SystemExit(f"{len(failed)} games failed: {failed[0].error_message}")
    moves = [list(_moves(rollout)) for rollout in rollouts]
    lost = [rollout for rollout in rollouts if _has_lost(rollout)]
    return Games(
        count=len(rollouts),
        wins=sum(rollout.columns["win"] == 1.0 for rollout in rollouts),
        draws=sum(rollout.columns["win"] == 0.5 for rollout in rollouts),
        losses=len(lost),
        losses_second=sum(rollout.task.seed % 2 for rollout in lost),
        readable=sum(step.action is not None for rollout in rollouts for step in rollout.steps),
        replies=sum(len(rollout.steps) for rollout in rollouts),
        with_invalid=sum(rollout.columns["invalid_move"] < 0 for rollout in rollouts),
        boards=len({move.board for game in moves for move in game}),
        sequences=len({tuple((move.board, move.reply) for move in game) for game in moves}),
        blind=_foretold([move for game in moves for move in game]),
    )


def _has_lost(rollout: Rollout) -> bool:
    return rollout.columns["win"] == 0.0 and bool(rollout.steps) and _message(rollout).endswith("O wins.")


def _message(rollout: Rollout) -> str:
    return str(rollout.steps[-1].observation.get("message", ""))


def _moves(rollout: Rollout) -> Iterator[Move]:
    board = str(rollout.opening.get("board", ""))
    own: tuple[str, ...] = (str(rollout.task.seed % 2),)
    for step in rollout.steps:
        yield Move(own, board, step.reply)
        own = (*own, step.reply)
        board = str(step.observation.get("board") or board)


def _foretold(moves: Sequence[Move]) -> float:
    """How often the commonest reply to the same own moves is the reply."""
    replies: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for move in moves:
        replies[move.own][move.reply] += 1
    return sum(max(counts.values()) for counts in replies.values()) / len(moves)
