"""Tic-tac-toe for two seats, `x` and `o`, from an opening that is a function of the seed and the split."""

import random
from typing import Any
from uuid import uuid4

from openenv.core.env_server.types import State

from .game import OTHER, completing_move, draw, free, gold_move, opening, put, winner, worst_move
from .rewards import RewardedEnvironment, column

try:
    from ..models import TictactoeDuelAction, TictactoeDuelObservation
except ImportError:  # run from the package's folder
    from models import TictactoeDuelAction, TictactoeDuelObservation

MAX_MISTAKES = 3
"""Number of illegal moves that lose the game."""
TEACHER_LOOKS = 0.4
"""How often the teacher looks for a win or a block; otherwise it moves at random."""


class TictactoeDuelEnvironment(RewardedEnvironment):
    """One game. Every observation is for the seat whose turn it is, and every action is that seat's."""

    def __init__(self) -> None:
        super().__init__()
        self.reset(seed=0)

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, split: str = "train", **kwargs: Any
    ) -> TictactoeDuelObservation:
        self._seed = random.randrange(2**31) if seed is None else seed
        self._episode_id = episode_id or str(uuid4())
        self._board, self._mark = opening(self._seed, is_heldout=split == "heldout")
        self._start = self._board
        self._moves = 0
        self._mistakes = {"X": 0, "O": 0}
        self._is_first_mistake = False
        self._is_over = False
        self._winner: str | None = None
        self._viewer = self._mark
        """The mark whose columns are computed."""
        self._mover = self._mark
        """The mark that moved last."""
        self.begin_rewards()
        return self._observe("")

    def step(
        self, action: TictactoeDuelAction, timeout_s: float | None = None, **kwargs: Any
    ) -> TictactoeDuelObservation:
        if self._is_over:
            raise RuntimeError("the game has ended: call reset first")
        self._mover = self._mark
        observation = self._observe(self._move(action.cell - 1))
        self._viewer = OTHER[self._mover]
        others = {self._viewer.lower(): {"win": self.win(), "invalid_move": self.invalid_move()}}
        self._viewer = self._mover
        self.rewarded(observation)
        observation.metadata["seats"] = others
        return observation

    @column
    def win(self) -> float:
        """Return the result for `self._viewer`."""
        if not self._is_over:
            return 0.0
        return 0.5 if self._winner is None else float(self._winner == self._viewer)

    @column
    def invalid_move(self) -> float:
        return -1.0 if self._is_first_mistake and self._viewer == self._mover else 0.0

    @property
    def state(self) -> State:
        """Never shown to a policy."""
        return State(
            episode_id=self._episode_id,
            step_count=self._moves,
            board=self._board,
            winner=self._winner,
            scripts=self._scripts(),
        )

    def _scripts(self) -> dict[str, str]:
        """The next reply of each scripted policy, for the seat whose turn it is."""
        if self._is_over:
            return {}
        moves = {
            "gold": gold_move(self._board, self._mark),
            "teacher": self._teach(),
            "wrong": worst_move(self._board, self._mark),
        }
        return {script: f"<move>{index + 1}</move>" for script, index in moves.items()}

    def _move(self, index: int) -> str:
        """Make a move and return its description for the seat that is next."""
        mark = self._mark
        is_legal = index in free(self._board)
        self._is_first_mistake = not is_legal and not self._mistakes[mark]
        if not is_legal:
            self._mistakes[mark] += 1
            if self._mistakes[mark] >= MAX_MISTAKES:
                self._is_over, self._winner = True, OTHER[mark]
            return "Invalid."
        self._board = put(self._board, index, mark)
        self._moves += 1
        self._winner = winner(self._board)
        self._is_over = self._winner is not None or not free(self._board)
        self._mark = OTHER[mark]
        return f"{mark} plays {index + 1}."

    def _teach(self) -> int:
        """Not optimal on purpose: what it shows leaves much to learn."""
        chance = random.Random(f"teacher:{self._seed}:{self._board}")
        looks = chance.random() < TEACHER_LOOKS
        chosen = chance.choice(free(self._board))
        for mark in (self._mark, OTHER[self._mark]) if looks else ():
            if (index := completing_move(self._board, mark)) is not None:
                return index
        return chosen

    def _observe(self, message: str) -> TictactoeDuelObservation:
        if self._moves < 2 and message != "Invalid.":  # the first turn of a seat
            held = {mark: " ".join(str(n + 1) for n, each in enumerate(self._start) if each == mark) for mark in "XO"}
            message = f"You are {self._mark}. X has {held['X']}. O has {held['O']}. {message}".strip()
        legal = [] if self._is_over else [index + 1 for index in free(self._board)]
        return TictactoeDuelObservation(
            seat="" if self._is_over else self._mark.lower(),
            message=message,
            board=draw(self._board),
            legal_moves=legal,
            done=self._is_over,
        )
