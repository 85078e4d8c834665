"""Run a submitted function on inputs in the sandbox. Its outputs are data and are compared here, outside.

The results that are expected never enter the program's process, so nothing in there can read or rewrite them. What
the program reports about itself proves nothing: only the outputs count, and the nonce proves that these calls made
them.
"""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from proctor_sandbox import Limits, Result, execute

_CALLER = """
import copy, io, json, sys
given, hand_back, dumps = json.load(sys.stdin), submit, json.dumps
told = {"nonce": given["nonce"], "error": "", "calls": []}
sys.stdout = said = io.StringIO()
try:
    import solution
    function = getattr(solution, given["name"])
except BaseException as error:
    told["error"] = f"{type(error).__name__}: {error}"[:300]
else:
    for arguments in given["inputs"]:
        before = copy.deepcopy(arguments)
        try:
            call = {"output": function(*arguments), "changed": arguments != before}
            dumps(call)
        except BaseException as error:
            call = {"error": f"{type(error).__name__}: {error}"[:300]}
        told["calls"].append(call)
told["printed"] = bool(said.getvalue())
hand_back(told)
"""


@dataclass(frozen=True)
class Outcome:
    """What came of calling a submission on inputs."""

    result: Result
    outputs: tuple[Any, ...]
    """By input; `MISSING` where there is none."""
    error: str = ""
    """The first failure, described for its author."""
    is_changing_arguments: bool = False
    is_printing: bool = False
    is_forged: bool = False
    """The process ended well without answering our calls, or answered something else."""

    @property
    def has_timed_out(self) -> bool:
        return self.result.status == "timeout"


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()


def call(source: str, name: str, inputs: Sequence[Sequence[Any]], limits: Limits) -> Outcome:
    """Call the function `name` of a submission once per input."""
    nonce = secrets.token_hex(8)
    given = json.dumps({"nonce": nonce, "name": name, "inputs": inputs})
    result = execute(_CALLER, stdin=given, files={"solution.py": source}, limits=limits)
    told = result.value if isinstance(result.value, dict) else {}
    nothing = (MISSING,) * len(inputs)
    if told.get("nonce") != nonce:
        is_forged = result.status == "ok" or result.value is not None
        return Outcome(result, nothing, _why_nothing(result), is_forged=is_forged)
    if told["error"]:
        return Outcome(result, nothing, str(told["error"]))
    calls = [entry for entry in told["calls"] if isinstance(entry, dict)]
    if len(calls) != len(inputs):
        return Outcome(result, nothing, "not every call was answered", is_forged=True)
    return Outcome(
        result,
        tuple(entry.get("output", MISSING) for entry in calls),
        next((str(entry["error"]) for entry in calls if "error" in entry), ""),
        is_changing_arguments=any(entry.get("changed") for entry in calls),
        is_printing=bool(told.get("printed")),
    )


def is_same(output: Any, expected: Any) -> bool:
    """Equal as JSON: no operator of the program's own has a say, and True is not 1."""
    return output is not MISSING and json.dumps(output, sort_keys=True) == json.dumps(expected, sort_keys=True)


def _why_nothing(result: Result) -> str:
    match result.status:
        case "timeout":
            return "the time was up"
        case "memory":
            return "it used too much memory"
        case "output":
            return "it printed too much"
        case _:
            return "it ended before it was called"
