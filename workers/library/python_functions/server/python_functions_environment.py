"""Write a function: hidden tests decide, in a sandbox; what the source looks like is judged apart."""

import random
from typing import Any
from uuid import uuid4

from openenv.core.env_server.types import State
from proctor_sandbox import Limits

from .inspection import forbidden_names, marks_of_tampering, parameters_of, parse, repeats_examples, without_fence
from .problems import Problem, make_problem
from .rewards import RewardedEnvironment, column
from .submissions import Outcome, call, is_same

try:
    from ..models import PythonFunctionsAction, PythonFunctionsObservation
except ImportError:  # run from the package's folder
    from models import PythonFunctionsAction, PythonFunctionsObservation

LIMITS = Limits(seconds=2.0, memory_mb=128, processes=4, file_mb=2)


class PythonFunctionsEnvironment(RewardedEnvironment):
    """The problem is a function of split, level and seed."""

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
    ) -> PythonFunctionsObservation:
        self._seed = random.randrange(2**31) if seed is None else seed
        self._problem: Problem = make_problem(self._seed, split, level)
        self._episode_id = episode_id or str(uuid4())
        self._source: str | None = None
        self._outcome: Outcome | None = None
        self.begin_rewards()
        return PythonFunctionsObservation(question=self._problem.question)

    def step(
        self, action: PythonFunctionsAction, timeout_s: float | None = None, **kwargs: Any
    ) -> PythonFunctionsObservation:
        if self._source is not None:
            raise RuntimeError("the episode has ended: call reset first")
        self._source = without_fence(action.code)
        self._tree = parse(self._source)
        if self._tree is not None and parameters_of(self._tree, self._problem.name) is not None:
            inputs = [case.arguments for case in self._problem.tests]
            self._outcome = call(self._source, self._problem.name, inputs, LIMITS)
        observation = PythonFunctionsObservation(question=self._problem.question, message=self._message(), done=True)
        return self.rewarded(observation)

    @column
    def tests(self) -> float:
        """The share of hidden tests that pass."""
        return self._passed() / len(self._problem.tests)

    @column
    def solved(self) -> float:
        return float(self._passed() == len(self._problem.tests))

    @column
    def contract(self) -> float:
        """1 if the function passes a test, has the requested parameters, keeps its arguments and prints nothing."""
        if not self._passed() or self._outcome is None or self._tree is None:
            return 0.0
        asked = len(self._problem.tests[0].arguments)
        kept = (
            parameters_of(self._tree, self._problem.name) == asked,
            not self._outcome.is_changing_arguments,
            not self._outcome.is_printing,
        )
        return sum(kept) / len(kept)

    @column
    def timeout(self) -> float:
        return -1.0 if self._outcome is not None and self._outcome.has_timed_out else 0.0

    @column
    def forbidden_globals(self) -> float:
        return -1.0 if self._tree is not None and forbidden_names(self._tree) else 0.0

    @column
    def cheating(self) -> float:
        """-1 when the source reaches for its caller, is a table of the examples, or answered for the grader."""
        if self._tree is None:
            return 0.0
        examples = [case.arguments for case in self._problem.examples]
        is_forged = self._outcome is not None and self._outcome.is_forged
        is_caught = is_forged or marks_of_tampering(self._tree) or repeats_examples(self._tree, examples)
        return -1.0 if is_caught else 0.0

    @property
    def state(self) -> State:
        """Holds a solution: never shown to a policy."""
        return State(
            episode_id=self._episode_id,
            step_count=int(self._source is not None),
            answer=self._problem.solution(self._problem.family.gold),
            scripts=self._scripts(),
        )

    def _passed(self) -> int:
        if self._outcome is None:
            return 0
        cases = zip(self._outcome.outputs, self._problem.tests, strict=True)
        return sum(is_same(output, case.result) for output, case in cases)

    def _message(self) -> str:
        """How many, never which: the hidden tests stay hidden."""
        if self._tree is None:
            return "This is not Python."
        if self._outcome is None:
            return f"There is no function {self._problem.name} at the top level."
        error = f" The first error: {self._outcome.error}" if self._outcome.error else ""
        return f"{self._passed()} of {len(self._problem.tests)} hidden tests passed.{error}"

    def _scripts(self) -> dict[str, str]:
        """partial forgets something; wrong returns nothing; teacher is gold or, at times, partial."""
        if self._source is not None:
            return {}
        problem, chance = self._problem, random.Random(f"teacher:{self._seed}")
        gold, partial = problem.solution(problem.family.gold), problem.solution(problem.family.partial)
        return {
            "gold": _reply(gold),
            "teacher": _reply(partial if chance.random() < 0.4 else gold),
            "partial": _reply(partial),
            "wrong": _reply(problem.solution("return 'nothing at all'")),
            "variant_1": f"Here it is.\n<code>\n```python\n{gold}```\n</code>",
            "variant_2": _reply(f'"""A solution."""\n\n\n{gold}\n\nEXTRA = 1\n'),
        }


def _reply(source: str) -> str:
    return f"<code>\n{source}</code>"
