"""Read a message to customer support and decide its category, action, priority and order."""

import json
import random
from typing import Any
from uuid import uuid4

from openenv.core.env_server.types import State

from .rewards import RewardedEnvironment, column
from .rules import ACTIONS, CATEGORIES, PRIORITIES, Decision, family_of
from .tickets import LEVELS, make_message

try:
    from ..models import SupportTriageAction, SupportTriageObservation
except ImportError:  # run from the package's folder
    from models import SupportTriageAction, SupportTriageObservation

SAME_FAMILY = 0.3
"""For the action that other dates, or another cause in the same category, would have required."""
NEXT_PRIORITY = 0.3
"""For a priority that is one off."""


class SupportTriageEnvironment(RewardedEnvironment):
    """The message is a function of split, level and seed."""

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
    ) -> SupportTriageObservation:
        if not 0 <= level < LEVELS:
            raise ValueError(f"level {level}: there are 0 to {LEVELS - 1}")
        self._seed = random.randrange(2**31) if seed is None else seed
        self._text, self._wanted = make_message(self._seed, split, level)
        self._episode_id = episode_id or str(uuid4())
        self._given: Decision | None = None
        self.begin_rewards()
        return SupportTriageObservation(message=self._text)

    def step(
        self, action: SupportTriageAction, timeout_s: float | None = None, **kwargs: Any
    ) -> SupportTriageObservation:
        if self._given is not None:
            raise RuntimeError("the episode has ended: call reset first")
        words = (_word(action.category), _word(action.action), _word(action.priority))
        self._given = Decision(*words, action.order.strip().upper())
        right = [name for name, given, wanted in self._compared() if given == wanted]
        result = f"Right: {', '.join(right) or 'nothing'}."
        return self.rewarded(SupportTriageObservation(message=self._text, result=result, done=True))

    @column
    def category(self) -> float:
        return float(self._is_right("category"))

    @column
    def action(self) -> float:
        """Something for what would have been right on other dates."""
        if self._is_right("action"):
            return 1.0
        return SAME_FAMILY if self._given and self._given.action in family_of(self._wanted.action) else 0.0

    @column
    def priority(self) -> float:
        if self._given is None or self._given.priority not in PRIORITIES:
            return 0.0
        off = abs(PRIORITIES.index(self._given.priority) - PRIORITIES.index(self._wanted.priority))
        return {0: 1.0, 1: NEXT_PRIORITY}.get(off, 0.0)

    @column
    def reference(self) -> float:
        """Only with the right category, so that an empty order is no free gain."""
        return float(self._is_right("order") and self._is_right("category"))

    @column
    def complete(self) -> float:
        return float(self._given == self._wanted)

    @property
    def state(self) -> State:
        """Holds the decision: never shown to a policy."""
        return State(
            episode_id=self._episode_id,
            step_count=int(self._given is not None),
            answer=json.dumps(self._wanted._asdict()),
            scripts=self._scripts(),
        )

    def _is_right(self, name: str) -> bool:
        return self._given is not None and getattr(self._given, name) == getattr(self._wanted, name)

    def _compared(self) -> list[tuple[str, str, str]]:
        return list(zip(Decision._fields, self._given or ("",) * 4, self._wanted, strict=True))

    def _scripts(self) -> dict[str, str]:
        """partial reads the topic but not the dates, the urgency or the order; wrong reads nothing."""
        if self._given is not None:
            return {}
        wanted = self._wanted
        chance = random.Random(f"teacher:{self._seed}")
        family = family_of(wanted.action)
        other = chance.choice([action for action in family if action != wanted.action] or family)
        partial = Decision(wanted.category, other, _next(wanted.priority), "")
        foreign = [action for action in ACTIONS if action not in family]
        far = PRIORITIES[0] if PRIORITIES.index(wanted.priority) > 1 else PRIORITIES[3]
        elsewhere = [category for category in CATEGORIES if category != wanted.category]
        wrong = Decision(chance.choice(elsewhere), chance.choice(foreign), far, "HX-00000")
        spaced = Decision(
            wanted.category.upper(), wanted.action.replace("_", " "), wanted.priority.title(), wanted.order
        )
        return {
            "gold": _reply(wanted),
            "variant_1": f"```json\n{json.dumps(dict(reversed(spaced._asdict().items())), indent=2)}\n```",
            "teacher": _reply(wanted if chance.random() < 0.4 else partial),
            "partial": _reply(partial),
            "wrong": _reply(wrong),
        }


def _word(text: str) -> str:
    return "_".join(text.lower().split())


def _next(priority: str) -> str:
    place = PRIORITIES.index(priority)
    return PRIORITIES[place - 1] if place else PRIORITIES[1]


def _reply(decision: Decision) -> str:
    return json.dumps(decision._asdict())
