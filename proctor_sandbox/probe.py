"""Run one program on many inputs in a single execution. Each input gets a fresh process and its own limits.

The process that collects the answers never runs a line of the program. It is the first process of its namespace, so
the program cannot end it, and it ends everything that the program started before the next input. It knows no expected
result: comparing is the caller's task.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from proctor_sandbox import inside_probe
from proctor_sandbox.client import execute
from proctor_sandbox.terms import Limits

Outcome = Literal["ok", "error", "exit", "timeout", "output", "killed", "object", "missing", "not_run"]
MAX_INPUTS = 64
MAX_ANSWER = 4000
"""Characters of an answer."""
MAX_INPUT = 60_000
"""Characters of an input."""
PROBE_LIMITS = Limits(seconds=12.0, memory_mb=256, output_bytes=1 << 20, processes=8, file_mb=4)
INPUT_SECONDS = 1.0
_PROGRAM = f"{Path(inside_probe.__file__).read_text(encoding='utf-8')}\nmain()\n"


@dataclass(frozen=True)
class Answer:
    """The result of a program for one input."""

    outcome: Outcome
    """ok; error: an exception; exit: `sys.exit` in a function, or a failing exit code; timeout; output: it printed more
    than MAX_ANSWER; killed: ended by a signal or `os._exit`; object: a value that is not plain data; missing: no such
    function, or not Python; not_run: the program's limits were exhausted by other inputs."""
    text: str = ""
    """stdout, or the value as a Python literal; the name of an exception or of an object's class."""


def run_on_inputs(
    source: str,
    inputs: Sequence[str],
    *,
    function: str | None = None,
    limits: Limits = PROBE_LIMITS,
    seconds: float = INPUT_SECONDS,
) -> list[Answer]:
    """Run a program on each input and return its answers, in order.

    `function`: call this function (or method of a class `Solution`) with the arguments that each input writes as a
    Python list; default: each input is the program's stdin. `seconds`: wall-clock time per input, `limits`: of all
    inputs together. Raises SandboxUnavailable and SandboxFailed, never an exception because of the program.
    """
    if len(inputs) > MAX_INPUTS:
        raise ValueError(f"a program runs on at most {MAX_INPUTS} inputs")
    request = {"source": source, "inputs": [text[:MAX_INPUT] for text in inputs], "function": function}
    bounds = {"seconds": seconds, "most": MAX_ANSWER, "memory_mb": limits.memory_mb // 2}
    result = execute(
        _PROGRAM,
        files={inside_probe.REQUEST: json.dumps(request | bounds)},
        limits=replace(limits, memory_mb=limits.memory_mb + 32),
    )
    answers: list[Answer] = []
    for line in result.stdout.splitlines():
        try:
            outcome, text = json.loads(line)
        except ValueError:  # the last line, cut when a limit ended everything
            break
        answers.append(Answer(outcome, text))
    if len(answers) < len(inputs) and result.status in {"timeout", "memory", "killed", "output"}:
        answers.append(Answer("timeout" if result.status == "timeout" else "killed", result.status))
    answers += [Answer("not_run")] * (len(inputs) - len(answers))
    return answers[: len(inputs)]
