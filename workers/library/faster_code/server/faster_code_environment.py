"""Make a program faster: the same results, less processor time. Speed is worth nothing where a result is wrong."""

import random
from typing import Any
from uuid import uuid4

from openenv.core.env_server.types import State

from .inspection import marks_of_tampering, parameters_of, parse, without_fence
from .problems import Problem, make_problem
from .rewards import RewardedEnvironment, column
from .stopwatch import LIMITS, times_faster, worth
from .submissions import Outcome, call, is_same

try:
    from ..models import FasterCodeAction, FasterCodeObservation
except ImportError:  # run from the package's folder
    from models import FasterCodeAction, FasterCodeObservation


class FasterCodeEnvironment(RewardedEnvironment):
    """The program is a function of split, level and seed."""

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
    ) -> FasterCodeObservation:
        self._seed = random.randrange(2**31) if seed is None else seed
        self._problem: Problem = make_problem(self._seed, split, level)
        self._episode_id = episode_id or str(uuid4())
        self._source: str | None = None
        self._outcome: Outcome | None = None
        self._times = 0.0
        self.begin_rewards()
        return FasterCodeObservation(question=self._problem.question)

    def step(self, action: FasterCodeAction, timeout_s: float | None = None, **kwargs: Any) -> FasterCodeObservation:
        if self._source is not None:
            raise RuntimeError("the episode has ended: call reset first")
        self._source = without_fence(action.code)
        self._tree = parse(self._source)
        if self._tree is not None and parameters_of(self._tree, self._problem.name) is not None:
            inputs = [case.arguments for case in self._problem.tests]
            self._outcome = call(self._source, self._problem.name, inputs, LIMITS)
        if self.correct():
            self._times = times_faster(self._source, self._problem)
        observation = FasterCodeObservation(question=self._problem.question, message=self._message(), done=True)
        return self.rewarded(observation)

    @column
    def correct(self) -> float:
        """1 when every hidden test gives the result of the slow program."""
        return float(self._passed() == len(self._problem.tests))

    @column
    def speedup(self) -> float:
        """0.25 when twice as fast, 0.5 at 3.5 times, 0.75 at 6, 1 at 12; 0 when any result is wrong."""
        return worth(self._times) if self.correct() else 0.0

    @column
    def cheating(self) -> float:
        """-1 when the source reaches for its caller, or answered in place of the measurement."""
        if self._tree is None:
            return 0.0
        is_forged = self._outcome is not None and self._outcome.is_forged
        return -1.0 if is_forged or marks_of_tampering(self._tree) else 0.0

    @property
    def state(self) -> State:
        """Holds a solution: never shown to a policy."""
        return State(
            episode_id=self._episode_id,
            step_count=int(self._source is not None),
            answer=self._problem.fast,
            scripts=self._scripts(),
        )

    def _passed(self) -> int:
        if self._outcome is None:
            return 0
        cases = zip(self._outcome.outputs, self._problem.tests, strict=True)
        return sum(is_same(output, case.result) for output, case in cases)

    def _message(self) -> str:
        if self._tree is None:
            return "This is not Python."
        if self._outcome is None:
            return f"There is no function {self._problem.name} at the top level."
        if not self.correct():
            error = f" The first error: {self._outcome.error}" if self._outcome.error else ""
            return f"{self._passed()} of {len(self._problem.tests)} results are those of the slow program.{error}"
        return f"Right, and worth {worth(self._times):.2f} for its speed."

    def _scripts(self) -> dict[str, str]:
        """partial hands the slow program back; wrong is quick and useless; teacher is gold or, at times, partial."""
        if self._source is not None:
            return {}
        problem, chance = self._problem, random.Random(f"teacher:{self._seed}")
        gold, partial = _reply(problem.fast), _reply(problem.slow)
        return {
            "gold": gold,
            "teacher": partial if chance.random() < 0.4 else gold,
            "partial": partial,
            "wrong": _reply(f"def {problem.name}({problem.family.parameters}):\n    return None\n"),
            "variant_1": f"Here it is.\n<code>\n```python\n{problem.fast}```\n</code>",
        }


def _reply(source: str) -> str:
    return f"<code>\n{source}</code>"
