"""Connect four: the policy plays X, the opponent's replies are a function of the seed and the board."""

import random
from typing import Any, NamedTuple
from uuid import uuid4

from openenv.core.env_server.types import State

from .game import CELLS, Position, best_column, draw, good_columns, has_four, open_columns, threatened_columns, values
from .game import winning_columns as winning
from .rewards import RewardedEnvironment, column

try:
    from ..models import ConnectFourAction, ConnectFourObservation
except ImportError:  # run from the package's folder
    from models import ConnectFourAction, ConnectFourObservation

MAX_TURNS = 24
GOLD_DEPTH = 5
TEACHER_LOOKS = 0.5
"""How often the teacher looks for a win or a block; otherwise it moves at random."""


class Opponent(NamedTuple):
    """How O plays on a level."""

    chance_of_random_move: float
    depth: int
    """Discs that it looks ahead otherwise."""


OPPONENTS = (Opponent(1.0, 1), Opponent(0.5, 2), Opponent(0.15, 2), Opponent(0.0, 3))


class ConnectFourEnvironment(RewardedEnvironment):
    """One game. X moves first when the seed is even, second when it is odd."""

    def __init__(self) -> None:
        super().__init__()
        self.reset(seed=0)

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, level: int = 0, **kwargs: Any
    ) -> ConnectFourObservation:
        if not 0 <= level < len(OPPONENTS):
            raise ValueError(f"level {level}: there are 0 to {len(OPPONENTS) - 1}")
        self._seed = random.randrange(2**31) if seed is None else seed
        self._opponent = OPPONENTS[level]
        self._episode_id = episode_id or str(uuid4())
        self._position = Position()
        """As X sees it when X is to move."""
        self._turns = 0
        self._mistakes = {"invalid_move": 0, "overlooked": 0}
        self._new_mistake = ""
        self._outcome: str | None = None
        self.begin_rewards()
        if self._seed % 2:
            return self._observe(self._opponent_moves(self._position))
        return self._observe("You start.")

    def step(self, action: ConnectFourAction, timeout_s: float | None = None, **kwargs: Any) -> ConnectFourObservation:
        if self._outcome:
            raise RuntimeError("the game has ended: call reset first")
        self._turns += 1
        self._new_mistake = ""
        message = self._move(action.column - 1)
        if self._outcome is None and self._turns >= MAX_TURNS:
            self._outcome, message = "timeout", "Out of turns."
        return self.rewarded(self._observe(message))

    @column
    def win(self) -> float:
        return {"win": 1.0, "draw": 0.5}.get(self._outcome or "", 0.0)

    @column
    def overlooked(self) -> float:
        """The first time that X could win at once, or had to block, and did neither."""
        return -1.0 if self._new_mistake == "overlooked" else 0.0

    @column
    def invalid_move(self) -> float:
        return -1.0 if self._new_mistake == "invalid_move" else 0.0

    @property
    def state(self) -> State:
        """Never shown to a policy."""
        return State(
            episode_id=self._episode_id,
            step_count=self._turns,
            board=draw(*self._position),
            outcome=self._outcome,
            scripts=self._scripts(),
        )

    def _move(self, index: int) -> str:
        """Play X's move and O's reply; return a description of both."""
        if index not in open_columns(self._position):
            self._note("invalid_move")
            return "Invalid."
        wanted = winning(self._position) or threatened_columns(self._position)
        if wanted and index not in wanted:
            self._note("overlooked")
        after = self._position.drop(index)
        self._settle(after.theirs, after, "win")
        message = {"win": "You win.", "draw": "Draw."}.get(self._outcome or "")
        if message:
            self._position = Position(after.theirs, after.mine)
            return message
        return self._opponent_moves(after)

    def _opponent_moves(self, position: Position) -> str:
        chance = random.Random(f"{self._seed}:{position.mine}:{position.theirs}")
        is_random = chance.random() < self._opponent.chance_of_random_move
        choices = open_columns(position) if is_random else good_columns(position, self._opponent.depth)
        index = chance.choice(sorted(choices))
        self._position = position.drop(index)
        self._settle(self._position.theirs, self._position, "loss")
        ending = {"loss": " O wins.", "draw": " Draw."}.get(self._outcome or "", "")
        return f"O plays {index + 1}.{ending}"

    def _settle(self, newest: int, position: Position, outcome: str) -> None:
        if has_four(newest):
            self._outcome = outcome
        elif position.discs() == CELLS:
            self._outcome = "draw"

    def _note(self, mistake: str) -> None:
        """Each kind is punished once an episode."""
        if not self._mistakes[mistake]:
            self._new_mistake = mistake
        self._mistakes[mistake] += 1

    def _scripts(self) -> dict[str, str]:
        """gold looks five discs ahead; teacher sees a win or a block half of the time; wrong is as bad as it can be."""
        if self._outcome:
            return {}
        gold = best_column(self._position, GOLD_DEPTH)
        chosen = {"gold": gold, "teacher": self._teach(), "wrong": self._blunder()}
        return {script: f"<move>{index + 1}</move>" for script, index in chosen.items()}

    def _teach(self) -> int:
        """Not optimal on purpose: what it shows leaves much to learn."""
        chance = random.Random(f"teacher:{self._seed}:{self._position}")
        looks = chance.random() < TEACHER_LOOKS
        chosen = chance.choice(sorted(open_columns(self._position)))
        wanted = winning(self._position) or threatened_columns(self._position)
        return wanted[0] if looks and wanted else chosen

    def _blunder(self) -> int:
        worth = values(self._position, 2)
        return min(worth, key=worth.__getitem__)

    def _observe(self, message: str) -> ConnectFourObservation:
        legal = [] if self._outcome else sorted(index + 1 for index in open_columns(self._position))
        return ConnectFourObservation(
            message=message, board=draw(*self._position), legal_moves=legal, done=self._outcome is not None
        )
