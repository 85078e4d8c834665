"""Tic-tac-toe: the policy plays X, the opponent's replies are a function of the seed and the board."""

import random
from typing import Any
from uuid import uuid4

from openenv.core.env_server.types import State

from .game import EMPTY, best_replies, completing_move, draw, free, gold_move, put, winner, worst_move
from .rewards import RewardedEnvironment, column

try:
    from ..models import TictactoeAction, TictactoeObservation
except ImportError:  # run from the package's folder
    from models import TictactoeAction, TictactoeObservation

MAX_TURNS = 8
CHANCE_OF_RANDOM_REPLY = (1.0, 0.5, 0.0)
"""By level: how often the opponent moves at random; otherwise it plays perfectly."""
TEACHER_LOOKS = 0.4
"""How often the teacher looks for a win or a block; otherwise it moves at random."""


class TictactoeEnvironment(RewardedEnvironment):
    """One game. X moves first when the seed is even, second when it is odd."""

    def __init__(self) -> None:
        super().__init__()
        self.reset(seed=0)

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, level: int = 0, **kwargs: Any
    ) -> TictactoeObservation:
        if not 0 <= level < len(CHANCE_OF_RANDOM_REPLY):
            raise ValueError(f"level {level}: there are 0 to {len(CHANCE_OF_RANDOM_REPLY) - 1}")
        self._seed = random.randrange(2**31) if seed is None else seed
        self._chance = CHANCE_OF_RANDOM_REPLY[level]
        self._episode_id = episode_id or str(uuid4())
        self._board = EMPTY
        self._turns = 0
        self._mistakes = 0
        self._is_first_mistake = False
        self._outcome: str | None = None
        self.begin_rewards()
        return self._observe(self._opponent_moves() if self._seed % 2 else "You start.")

    def step(self, action: TictactoeAction, timeout_s: float | None = None, **kwargs: Any) -> TictactoeObservation:
        if self._outcome:
            raise RuntimeError("the game has ended: call reset first")
        self._turns += 1
        message = self._move(action.cell - 1)
        if self._outcome is None and self._turns >= MAX_TURNS:
            self._outcome, message = "timeout", "Out of turns."
        return self.rewarded(self._observe(message))

    @column
    def win(self) -> float:
        return {"win": 1.0, "draw": 0.5}.get(self._outcome or "", 0.0)

    @column
    def invalid_move(self) -> float:
        return -1.0 if self._is_first_mistake else 0.0

    @property
    def state(self) -> State:
        """Never shown to a policy."""
        return State(
            episode_id=self._episode_id,
            step_count=self._turns,
            board=self._board,
            outcome=self._outcome,
            scripts=self._scripts(),
        )

    def _scripts(self) -> dict[str, str]:
        """The next reply of each scripted policy."""
        if self._outcome:
            return {}
        moves = {"gold": gold_move(self._board), "teacher": self._teach(), "wrong": worst_move(self._board)}
        return {script: _reply(index) for script, index in moves.items()}

    def _move(self, index: int) -> str:
        """Play X's move and O's reply; return a description of both."""
        is_legal = index in free(self._board)
        self._is_first_mistake = not is_legal and not self._mistakes
        if not is_legal:
            self._mistakes += 1
            return "Invalid."
        self._board = put(self._board, index, "X")
        self._settle()
        message = {"win": "You win.", "draw": "Draw."}.get(self._outcome or "")
        return message or self._opponent_moves()

    def _opponent_moves(self) -> str:
        chance = random.Random(f"{self._seed}:{self._board}")
        is_random = chance.random() < self._chance
        index = chance.choice(free(self._board) if is_random else best_replies(self._board))
        self._board = put(self._board, index, "O")
        self._settle()
        ending = {"loss": " O wins.", "draw": " Draw."}.get(self._outcome or "", "")
        return f"O plays {index + 1}.{ending}"

    def _settle(self) -> None:
        if won := winner(self._board):
            self._outcome = "win" if won == "X" else "loss"
        elif not free(self._board):
            self._outcome = "draw"

    def _teach(self) -> int:
        """Not optimal on purpose: what it shows leaves much to learn."""
        chance = random.Random(f"teacher:{self._seed}:{self._board}")
        looks = chance.random() < TEACHER_LOOKS
        chosen = chance.choice(free(self._board))
        for mark in "XO" if looks else "":
            if (index := completing_move(self._board, mark)) is not None:
                return index
        return chosen

    def _observe(self, message: str) -> TictactoeObservation:
        legal = [] if self._outcome else [index + 1 for index in free(self._board)]
        return TictactoeObservation(
            message=message, board=draw(self._board), legal_moves=legal, done=self._outcome is not None
        )


def _reply(index: int) -> str:
    return f"<move>{index + 1}</move>"
