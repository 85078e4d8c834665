"""One program on many inputs: its answers, and programs that never end, fork, flood or attack the probe."""

import time

import pytest

from proctor_sandbox import Limits
from proctor_sandbox.probe import Answer, run_on_inputs

ADD = "def f(a, b):\n    return a + b\n"


def test_a_function_is_called_with_the_arguments_of_each_input():
    answers = run_on_inputs(ADD, ["[1, 2]", "['a', 'b']", "[1, 'b']", "[[1], [2]]"], function="f")
    assert answers == [Answer("ok", "3"), Answer("ok", "'ab'"), Answer("error", "TypeError"), Answer("ok", "[1, 2]")]
    method = "class Solution:\n    def f(self, numbers: List[int]) -> int:\n        return max(numbers)\n"
    assert run_on_inputs(method, ["[[1, 3]]"], function="f") == [Answer("ok", "3")]


def test_a_program_reads_each_input_from_stdin():
    answers = run_on_inputs("n = int(input())\nprint(n * 2)\nexit()", ["4\n", "5", "x"])
    assert answers == [Answer("ok", "8\n"), Answer("ok", "10\n"), Answer("error", "ValueError")]


def test_no_input_sees_what_another_left_behind():
    source = """
import os
def f(n):
    before = os.path.exists("left"), n in globals().get("seen", [])
    open("left", "w").write("x")
    globals().setdefault("seen", []).append(n)
    return before[1]
"""
    assert {each.text for each in run_on_inputs(source, ["[1]", "[1]"], function="f")} == {"False"}


@pytest.mark.parametrize(
    ("source", "outcome"),
    [
        ("import os\nos._exit(0)", "killed"),
        ("import sys\nsys.exit(0)", "exit"),
        ("class One(int):\n    def __eq__(self, other): return True\ndef f(n): return One(1)", "object"),
        ("def f(n):\n    while True: print('a' * 1000)", "output"),
        ("def f(n): return [0] * 10**10", "error"),
        ("def g(n): return 1", "missing"),
        ("def f(:", "missing"),
        ("def f(n): return submit([['ok', '7']])", "error"),
        ("import os, signal\ndef f(n): os.kill(os.getppid(), 9); os.kill(os.getppid(), signal.SIGSTOP)", "ok"),
    ],
    ids=["os._exit", "sys.exit", "equal", "flood", "memory", "missing", "syntax", "submit", "kill"],
)  # fmt: skip
def test_an_attack_ends_its_own_input_only(source: str, outcome: str):
    good, bad = run_on_inputs(f"import sys\n{source}", ["[1]", "[2]"], function="f")
    assert (good.outcome, bad.outcome) == (outcome, outcome)


def test_a_program_writes_only_its_own_answer():
    forger = """
import os
def f(n):
    for descriptor in range(64):
        try: os.write(descriptor, b'["ok", "7"]\\n')
        except OSError: pass
    os._exit(0)
"""
    assert run_on_inputs(forger, ["[1]", "[2]", "[3]"], function="f") == [Answer("ok", "7")] * 3


def test_what_a_program_started_ends_with_its_input():
    daemon = """
import os, time
def f(n):
    if os.path.exists("late"): return "still there"
    if os.fork() == 0:
        os.setsid(); time.sleep(0.3); open("late", "w").close(); time.sleep(60); os._exit(0)
    time.sleep(0.05)
    return "begun"
"""
    began = time.monotonic()
    answers = run_on_inputs(daemon, ["[1]"] * 6, function="f")
    assert {each.text for each in answers} == {"'begun'"}
    assert time.monotonic() - began < 30


def test_endless_programs_are_given_up_and_the_next_one_runs():
    answers = run_on_inputs("def f(n):\n    while True: pass", ["[1]"] * 20, function="f", seconds=0.2)
    assert {each.outcome for each in answers} == {"timeout"}
    assert len(answers) == 20
    some = run_on_inputs("def f(n):\n    while n: pass\n    return n", ["[1]", "[0]"], function="f", seconds=0.5)
    assert some == [Answer("timeout"), Answer("ok", "0")]
    bomb = run_on_inputs("import os\ndef f(n):\n    while True: os.fork()", ["[1]"] * 3, function="f")
    assert all(each.outcome != "ok" for each in bomb)
    assert run_on_inputs(ADD, ["[1, 2]"], function="f") == [Answer("ok", "3")]


def test_the_limit_of_all_inputs_keeps_the_answers_before_it():
    source = "import time\ndef f(n):\n    time.sleep(n)\n    return n"
    inputs = ["[0]", "[0]", "[30]", "[0]"]
    answers = run_on_inputs(source, inputs, function="f", limits=Limits(seconds=3, processes=8), seconds=60)
    assert [each.outcome for each in answers] == ["ok", "ok", "timeout", "not_run"]
