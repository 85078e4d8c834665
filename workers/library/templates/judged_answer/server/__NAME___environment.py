"""An answer in free words: what can be counted is counted, the rest is judged. Replace the notes by your own task."""

import random
import re
from typing import Any
from uuid import uuid4

from openenv.core.env_server.types import State

from .judge import guarded, judge
from .notes import make_answer, make_note
from .rewards import RewardedEnvironment, column

try:
    from ..models import __CLASS__Action, __CLASS__Observation
except ImportError:  # run from the package's folder
    from models import __CLASS__Action, __CLASS__Observation

LEVELS = 2
MOST_WORDS = 30
ENOUGH_FACTS = 0.5
"""Share of the facts below which brevity and the judge's score earn no reward: style without content is worthless."""


class __CLASS__Environment(RewardedEnvironment):
    """The notes are a function of split, level and seed: the same task is identical in every run."""

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
        if not 0 <= level < LEVELS:
            raise ValueError(f"level {level}: there are 0 to {LEVELS - 1}")
        self._seed = random.randrange(2**31) if seed is None else seed
        self._episode_id = episode_id or str(uuid4())
        self._note = make_note(self._seed, split, level)
        self._answer: str | None = None
        self._judged = 0.0
        self.begin_rewards()
        return self._observe()

    def step(self, action: __CLASS__Action, timeout_s: float | None = None, **kwargs: Any) -> __CLASS__Observation:
        if self._answer is not None:
            raise RuntimeError("the episode has ended: call reset first")
        self._judged = guarded(judge, self._note.text, action.answer)  # once: a model's word may differ the second time
        self._answer = action.answer
        return self.rewarded(self._observe(f"{self.facts():.0%} of the facts are named."))

    @column
    def facts(self) -> float:
        """The objective, which a program can count: the share of facts that are named. Copied lines do not count."""
        if self._words() > 3 * MOST_WORDS:
            return 0.0
        own = self._answer or ""
        for line in self._note.text.splitlines():
            own = own.replace(line, "")
        named = [re.search(rf"\b{re.escape(fact)}\b", own, re.IGNORECASE) for fact in self._note.facts]
        return sum(found is not None for found in named) / len(named)

    @column
    def brief(self) -> float:
        return 1.0 if self._is_about_it() and self._words() <= MOST_WORDS else 0.0

    @column
    def judged(self) -> float:
        """The judge's word on how it reads."""
        return self._judged if self._is_about_it() else 0.0

    @property
    def state(self) -> State:
        """Never shown to a policy. `gold` is the reply of a perfect policy: the checks play it."""
        is_over = self._answer is not None
        return State(episode_id=self._episode_id, step_count=int(is_over), scripts={} if is_over else self._scripts())

    def _words(self) -> int:
        return len((self._answer or "").split())

    def _is_about_it(self) -> bool:
        return self.facts() >= ENOUGH_FACTS

    def _scripts(self) -> dict[str, str]:
        """partial leaves facts out; copied hands the notes back; wrong writes well about something else."""
        facts = self._note.facts
        answers = {
            "gold": make_answer(facts),
            "variant_1": make_answer(facts).replace("is moved to", "now takes place on"),
            "partial": f"The {facts[0]} is at the {facts[1]}.",
            "copied": self._note.text,
            "wrong": "The picnic in the valley takes place as planned.",
        }
        return {script: f"<answer>{answer}</answer>" for script, answer in answers.items()}

    def _observe(self, message: str = "") -> __CLASS__Observation:
        question = f"Tell the members in one or two sentences what has changed.\n{self._note.text}"
        return __CLASS__Observation(question=question, message=message, done=self._answer is not None)
