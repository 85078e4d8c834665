"""Improve a measured quantity in a few attempts. Replace `tours.py` with your quantity."""

import random
from typing import Any
from uuid import uuid4

from openenv.core.env_server.types import State

from .rewards import RewardedEnvironment, column
from .tours import best_order, length, make_places, read_tour, shortest, write_tour

try:
    from ..models import __CLASS__Action, __CLASS__Observation
except ImportError:  # run from the package's folder
    from models import __CLASS__Action, __CLASS__Observation

PLACES_BY_LEVEL = (6, 8)
ATTEMPTS = 3


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
        self._places = make_places(random.Random(f"{split}:{level}:{self._seed}"), PLACES_BY_LEVEL[level])
        self._start = length(self._places, tuple(range(len(self._places))))
        self._attempts = 0
        self._newest: float | None = None
        self._best = self._start
        self.begin_rewards()
        stops = ", ".join(f"{write_tour((n,))} ({x}, {y})" for n, (x, y) in enumerate(self._places))
        return self._observe(f"Stops: {stops}. In the order of the alphabet the tour is {self._start:.0f} long.")

    def step(self, action: __CLASS__Action, timeout_s: float | None = None, **kwargs: Any) -> __CLASS__Observation:
        if self._attempts >= ATTEMPTS:
            raise RuntimeError("the episode has ended: call reset first")
        self._attempts += 1
        order = read_tour(action.tour, len(self._places))
        self._newest = length(self._places, order) if order else None
        self._best = min(self._best, self._newest or self._best)
        if self._newest is None:
            return self.rewarded(self._observe("Not a tour: every stop once, no other."))
        return self.rewarded(self._observe(f"Measured: {self._newest:.0f}. Best so far: {self._best:.0f}."))

    @column
    def improved(self) -> float:
        """Best so far, from 0 (as given) to 1 (the optimum): the scale is the same on easy and hard tasks."""
        return (self._start - self._best) / (self._start - shortest(self._places))

    @column
    def optimal(self) -> float:
        return 1.0 if self._best <= shortest(self._places) + 1e-6 else 0.0

    @column
    def valid(self) -> float:
        """Only attempts that beat the given tour count, because some valid tour is always easy to find."""
        return float(self._newest is not None and self._newest < self._start - 1e-6) / ATTEMPTS

    @property
    def state(self) -> State:
        """Never shown to a policy. `gold` is the reply of a perfect policy: the checks play it."""
        is_over = self._attempts >= ATTEMPTS
        return State(
            episode_id=self._episode_id,
            step_count=self._attempts,
            answer=write_tour(best_order(self._places)),
            scripts={} if is_over else self._scripts(),
        )

    def _scripts(self) -> dict[str, str]:
        """partial always goes to the nearest stop; wrong keeps the given order."""
        best = best_order(self._places)
        tours = {
            "gold": write_tour(best),
            "variant_1": "-".join(write_tour((best[0], *best[:0:-1])).lower().split()),  # the other way round
            "partial": write_tour(self._nearest()),
            "wrong": write_tour(tuple(range(len(best)))),
        }
        return {script: f"<tour>{tour}</tour>" for script, tour in tours.items()}

    def _nearest(self) -> tuple[int, ...]:
        order, left = (0,), set(range(1, len(self._places)))
        while left:
            nearest = min(left, key=lambda place: length(self._places, (order[-1], place)))
            order, left = (*order, nearest), left - {nearest}
        return order

    def _observe(self, message: str) -> __CLASS__Observation:
        return __CLASS__Observation(
            message=message, attempts_left=ATTEMPTS - self._attempts, done=self._attempts >= ATTEMPTS
        )
