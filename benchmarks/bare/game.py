"""Tic-tac-toe in this process: the rules of the library's environment without a server, a sandbox or a wire."""

import importlib.util
import random
import re
from dataclasses import dataclass, field
from functools import lru_cache
from types import ModuleType

from backend.settings import PROJECT_ROOT

SYSTEM = "Tic-tac-toe: you are X. Cells are numbered 1 to 9, row by row. Reply only with <move>n</move>, n a free cell."
MAX_TURNS = 8
CHANCES = (1.0, 0.5, 0.0)
_MOVE = re.compile(r"<move>\s*(\d)\s*</move>")


@lru_cache(maxsize=1)
def rules() -> ModuleType:
    """The library's own file: the package around it wants OpenEnv."""
    path = PROJECT_ROOT / "workers/library/tictactoe/server/game.py"
    specification = importlib.util.spec_from_file_location("tictactoe_rules", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@dataclass(slots=True)
class Game:
    """One episode; `opening` and what `step` answers is what the policy reads."""

    seed: int
    level: int
    board: str = "." * 9
    turns: int = 0
    readable: int = 0
    mistakes: int = 0
    outcome: str = ""
    opening: str = field(init=False)

    def __post_init__(self) -> None:
        self.opening = self._reply() if self.seed % 2 else "You start."

    def step(self, text: str) -> str:
        """What the reply leads to. The game is over when `outcome` is set."""
        self.turns += 1
        found = _MOVE.search(text)
        self.readable += found is not None
        message = self._move(int(found[1]) - 1) if found else "Invalid."
        if not self.outcome and self.turns >= MAX_TURNS:
            self.outcome = "timeout"
        return message

    def rewards(self) -> dict[str, float]:
        win = {"win": 1.0, "draw": 0.5}.get(self.outcome, 0.0)
        return {"win": win, "format": self.readable / self.turns, "invalid_move": -1.0 if self.mistakes else 0.0}

    def _move(self, index: int) -> str:
        if index not in rules().free(self.board):
            self.mistakes += 1
            return "Invalid."
        self.board = rules().put(self.board, index, "X")
        self._settle()
        return self.outcome or self._reply()

    def _reply(self) -> str:
        chance = random.Random(f"{self.seed}:{self.board}")
        is_random = chance.random() < CHANCES[self.level]
        index = chance.choice(rules().free(self.board) if is_random else rules().best_replies(self.board))
        self.board = rules().put(self.board, index, "O")
        self._settle()
        return f"O plays {index + 1}."

    def _settle(self) -> None:
        if won := rules().winner(self.board):
            self.outcome = "win" if won == "X" else "loss"
        elif not rules().free(self.board):
            self.outcome = "draw"
