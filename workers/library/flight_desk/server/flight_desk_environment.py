"""A desk of an airline: requests of customers, a system whose flights sell out meanwhile, and rules to keep."""

import json
import random
import re
from typing import Any
from uuid import uuid4

from openenv.core.env_server.types import State

from .cases import make_case
from .desk import NotDone
from .rewards import RewardedEnvironment, column
from .work import Work

try:
    from ..models import FlightDeskAction, FlightDeskObservation
except ImportError:  # run from the package's folder
    from models import FlightDeskAction, FlightDeskObservation

LEVELS = 4
MAX_CALLS = 12
TEACHER_STRAYS = 0.2
"""Share of the teacher's calls that repeat an earlier lookup."""
TEACHER_FORGETS = 0.4
"""Share of tasks in which the teacher closes the case without naming the sum."""
TEACHER_ERRS = 0.25
"""Share of tasks in which the teacher closes the case the wrong way."""
PATIENCE = 4
"""Wasted calls after which none of `no_wasted_calls` is left."""


class FlightDeskEnvironment(RewardedEnvironment):
    """One customer. Flights, bookings, and when seats are sold to others are functions of the task and of the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.reset(seed=0)

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        split: str = "train",
        level: int = 0,
        **kwargs: Any,
    ) -> FlightDeskObservation:
        if not 0 <= level < LEVELS:
            raise ValueError(f"level {level}: there are 0 to {LEVELS - 1}")
        self._seed = random.randrange(2**31) if seed is None else seed
        self._episode_id = episode_id or str(uuid4())
        self._work = Work(*make_case(self._seed, split, level))
        self._had_broken_a_rule = False
        self.begin_rewards()
        return FlightDeskObservation(message=self._work.case.request, time=self._work.desk.time)

    def step(self, action: FlightDeskAction, timeout_s: float | None = None, **kwargs: Any) -> FlightDeskObservation:
        if self._is_over:
            raise RuntimeError("the case is closed: reset first")
        self._had_broken_a_rule = self._work.has_broken_a_rule
        message = self._call(action.tool, action.arguments)
        self._work.desk.clock += 1
        if self._is_over and not self._work.outcome:
            message += "\nThe customer has left."
        time = self._work.desk.time
        return self.rewarded(FlightDeskObservation(message=message, time=time, done=self._is_over))

    @column
    def goal(self) -> float:
        """1 if exactly the change that the request and the rules require was made."""
        return float(bool(self._work.outcome) and self._work.is_right())

    @column
    def informed(self) -> float:
        """With the goal: the last message names the flight or the booking, and the right sum and no other."""
        said = self._work.message
        sums = set(re.findall(r"(\d+) ?(?:euros?|eur|€)", said.lower()))
        return self.goal() * (self._work.subject() in said.upper() and sums == {str(self._work.amount())})

    @column
    def policy_followed(self) -> float:
        """-1 once, when a rule of the desk is broken."""
        return -1.0 if self._work.has_broken_a_rule and not self._had_broken_a_rule else 0.0

    @column
    def no_wasted_calls(self) -> float:
        """With the goal: 1, less a quarter for each call that could not help."""
        return self.goal() * max(0.0, 1.0 - self._work.wasted / PATIENCE)

    @property
    def state(self) -> State:
        """Never shown to a policy."""
        work = self._work
        return State(
            episode_id=self._episode_id,
            step_count=work.desk.clock,
            is_to_be_refused=work.is_to_be_refused(),
            bookings={reference: vars(booking) for reference, booking in work.desk.bookings.items()},
            scripts={} if self._is_over else self._scripts(),
        )

    @property
    def _is_over(self) -> bool:
        return bool(self._work.outcome) or self._work.desk.clock >= MAX_CALLS

    def _call(self, tool: str, arguments: dict[str, Any]) -> str:
        method = getattr(self._work, f"tool_{tool}", None)
        if method is None:
            return f"There is no tool {tool[:40]!r}."
        try:
            return method(**arguments)
        except NotDone as refusal:
            return str(refusal)
        except (TypeError, AttributeError):
            return "These are not the arguments of that tool."

    def _scripts(self) -> dict[str, str]:
        """Next replies: perfect; careless; right, but without a word to the customer; wrong; and rewritten."""
        tool, arguments = self._work.best_call()
        gold = _reply(tool, arguments)
        scripts = dict.fromkeys(("gold", "teacher", "partial", "wrong", "variant_1", "variant_2"), gold)
        scripts["variant_1"] = f"Let me see.\n{gold}"
        scripts["variant_2"] = _reply(tool, arguments, indent=2)
        if 0 < self._work.desk.clock < MAX_CALLS - 6 and self._chance(self._work.desk.clock) < TEACHER_STRAYS:
            scripts["teacher"] = _reply(*self._work.first_call())
        elif tool == "close_case" and self._chance() < TEACHER_FORGETS:
            scripts["teacher"] = _reply(tool, arguments | {"message": f"{self._work.subject()}, as you wished."})
        if tool == "close_case":
            scripts["partial"] = _reply(tool, arguments | {"message": "All done."})
            told = f"{self._work.subject()}: {self._work.amount()} EUR"
            scripts["variant_1"] = _reply(tool, arguments | {"message": told})
        if self._work.desk.clock:
            outcome = "done" if self._work.is_to_be_refused() else "refused"
            message = f"{self._work.subject()}: 0 euros"
            scripts["wrong"] = _reply("close_case", {"outcome": outcome, "message": message})
            if tool == "close_case" and self._chance(-1) < TEACHER_ERRS:
                scripts["teacher"] = scripts["wrong"]
        return scripts

    def _chance(self, call: int | None = None) -> float:
        """The teacher's: of the whole task, or of one call of it (-1: of its closing)."""
        return random.Random(f"teacher:{self._seed}:{call}").random()


def _reply(tool: str, arguments: dict[str, Any], indent: int | None = None) -> str:
    return f"<tool_call>{json.dumps({'name': tool, 'arguments': arguments}, indent=indent)}</tool_call>"
