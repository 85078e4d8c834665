"""A problem solved line by line; every line is checked. Replace the sums and `steps.py` with your task."""

import random
import zlib
from typing import Any
from uuid import uuid4

from openenv.core.env_server.types import State

from .rewards import RewardedEnvironment, column
from .steps import answer_of, make_line, next_lines, read_line, right_steps, steps_needed, write_line

try:
    from ..models import __CLASS__Action, __CLASS__Observation
except ImportError:  # run from the package's folder
    from models import __CLASS__Action, __CLASS__Observation

OPERATIONS_BY_LEVEL = (2, 4)
HELDOUT_SHARE = 5
"""One in this many problems belongs to the held-out split."""
MOST_LINES = 40


class __CLASS__Environment(RewardedEnvironment):
    """The problem is a function of split, level and seed: the same task is identical in every run."""

    def __init__(self) -> None:
        super().__init__()
        self.reset(seed=0)

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        split: str = "train",
        level: int = 0,
        index: int = 0,
        **kwargs: Any,
    ) -> __CLASS__Observation:
        self._seed = random.randrange(2**31) if seed is None else seed
        self._episode_id = episode_id or str(uuid4())
        chance = random.Random(f"{split}:{level}:{self._seed}")
        while True:
            self._problem = make_line(chance, OPERATIONS_BY_LEVEL[level])
            is_heldout = zlib.crc32(write_line(self._problem).encode()) % HELDOUT_SHARE == 0
            if is_heldout == (split == "heldout"):
                break
        self._lines: list[Any] | None = None
        self.begin_rewards()
        return self._observe()

    def step(self, action: __CLASS__Action, timeout_s: float | None = None, **kwargs: Any) -> __CLASS__Observation:
        if self._lines is not None:
            raise RuntimeError("the episode has ended: call reset first")
        written = [line for line in action.working.splitlines() if line.strip()]
        self._lines = [read_line(line) for line in written[:MOST_LINES]]
        right = right_steps(self._problem, self._lines)
        return self.rewarded(self._observe(f"{right} of {len(written)} lines hold."))

    @column
    def correct(self) -> float:
        """What really matters: the last line is the answer."""
        lines = self._lines or []
        return 1.0 if lines and lines[-1] == answer_of(self._problem) else 0.0

    @column
    def steps(self) -> float:
        """Correct steps before the first wrong one, as a share of the required steps: padding adds nothing."""
        return min(1.0, right_steps(self._problem, self._lines or []) / steps_needed(self._problem))

    @column
    def sound(self) -> float:
        """No line that does not follow: a right answer after wrong steps does not earn it."""
        lines = self._lines or []
        return 1.0 if lines and right_steps(self._problem, lines) == len(lines) and self.correct() else 0.0

    @property
    def state(self) -> State:
        """Never shown to a policy. `gold` is the reply of a perfect policy: the checks play it."""
        return State(
            episode_id=self._episode_id,
            step_count=int(self._lines is not None),
            answer=write_line(answer_of(self._problem)),
            scripts={} if self._lines is not None else self._scripts(),
        )

    def _scripts(self) -> dict[str, str]:
        """partial fails in its last line; leap writes only the answer; wrong makes a mistake at once and continues."""
        lines = [next_lines(self._problem)[0]]
        while len(lines[-1]) > 1:
            lines.append(next_lines(lines[-1])[0])
        slip = str(int(lines[-1][0]) + 1)
        texts = [write_line(line) for line in lines]
        replies = {
            "gold": texts,
            "variant_1": [f"  = {text.replace(' ', '')}" for text in texts],
            "leap": texts[-1:],
            "partial": [*texts[:-1], slip],
            "wrong": [slip],
        }
        return {script: "<work>" + "\n".join(text) + "</work>" for script, text in replies.items()}

    def _observe(self, message: str = "") -> __CLASS__Observation:
        return __CLASS__Observation(
            question=f"Work out {write_line(self._problem)}", message=message, done=self._lines is not None
        )
