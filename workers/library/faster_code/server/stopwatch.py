"""How much faster a program is than the one it replaces: processor time as the kernel counts it, outside the program.

Its own clocks say nothing. What every run costs, whatever it computes, is measured once and taken off; the speed-up is
rounded to steps, so that noise does not reach the reward.
"""

import threading
from functools import cache

from proctor_sandbox import Limits

from .families import Family
from .problems import Problem, large_input
from .submissions import call, is_same

LIMITS = Limits(seconds=10.0, memory_mb=256, processes=4, file_mb=2)
STEPS = ((12.0, 1.0), (6.0, 0.75), (3.5, 0.5), (2.0, 0.25))
"""Minimum speed-up and its reward."""
RUNS = 5
"""At most; the best one counts, and a program that is plainly slow or fast is not run again."""
_NO_FASTER, _PLAINLY_SLOW = 1.1, 1.5
"""In the first run; in any later one."""
_SHORTEST = 0.0005
"""Seconds; shorter times cannot be distinguished from zero."""
_lock = threading.Lock()


def times_faster(source: str, problem: Problem) -> float:
    """0 when the large input's result is wrong or does not come."""
    with _lock:
        reference = _reference_seconds(problem.family)
    case, times = problem.large(), 0.0
    for run in range(RUNS):
        outcome = call(source, problem.name, [case.arguments], LIMITS)
        if not is_same(outcome.outputs[0], case.result):
            return 0.0
        spent = outcome.result.cpu_seconds - _fixed_seconds(problem.family)
        times = max(times, reference / max(spent, _SHORTEST))
        if times >= STEPS[0][0] or times < (_PLAINLY_SLOW if run else _NO_FASTER):
            break
    return times


def worth(times: float) -> float:
    return next((value for least, value in STEPS if times >= least), 0.0)


@cache
def _reference_seconds(family: Family) -> float:
    """Seconds that the slow program takes for the large input."""
    problem = Problem(family, family.k[0], ())
    return _spent(problem.slow, family) - _fixed_seconds(family)


@cache
def _fixed_seconds(family: Family) -> float:
    """Seconds of a run that computes nothing."""
    return _spent(f"def {family.name}(*arguments):\n    return None\n", family)


def _spent(source: str, family: Family) -> float:
    runs = [call(source, family.name, [large_input(family)], LIMITS) for _ in range(3)]
    return min(run.result.cpu_seconds for run in runs)
