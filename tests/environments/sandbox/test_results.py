"""Results of `execute` for honest programs and for wrong ones."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from proctor_sandbox import Limits, Result, execute
from tests.environments.sandbox.conftest import Run


def test_a_program_reads_its_input_and_files_prints_and_submits(run: Run) -> None:
    source = "import helper\nprint(input()[::-1], open('data/a.txt').read())\nsubmit({'n': helper.n, 'l': [1.5, None]})"
    result = run(source, stdin="abc\nx", files={"helper.py": "n = 7", "data/a.txt": "grün"})
    assert (result.status, result.stdout, result.stderr, result.exit_code) == ("ok", "cba grün\n", "", 0)
    assert result.value == {"n": 7, "l": [1.5, None]}
    assert 0 < result.seconds < 2


def test_an_exception_is_an_error_with_the_programs_own_traceback(run: Run) -> None:
    result = run("def f():\n    return 1 / 0\nf()\n")
    assert (result.status, result.exit_code) == ("error", 1)
    assert result.stderr.splitlines()[0] == "Traceback (most recent call last):"
    assert "return 1 / 0" in result.stderr
    assert "proctor_sandbox" not in result.stderr


@pytest.mark.parametrize(
    ("source", "status", "code"),
    [
        ("import sys; sys.exit(0)", "ok", 0),
        ("import os; os._exit(0)", "ok", 0),
        ("import sys; sys.exit('why')", "error", 1),
        ("import os; os._exit(3)", "error", 3),
        ("def f(:", "error", 1),
        ("import ctypes; ctypes.string_at(0)", "killed", -11),
        ("import os; os.abort()", "killed", -11),
        ("raise KeyboardInterrupt", "error", 1),
        ("x = [0]\nfor _ in range(200000): x = [x]\ndel x\nimport json; json.dumps([[[]]])", "ok", 0),
    ],
)
def test_each_end_has_its_status(run: Run, source: str, status: str, code: int) -> None:
    result = run(source)
    assert (result.status, result.exit_code) == (status, code), result


def test_leaving_early_hands_back_nothing(run: Run) -> None:
    assert run("submit(1)").value == 1
    for leave in ("import sys; sys.exit(0)", "import os; os._exit(0)"):
        result = run(f"{leave}\nprint('all tests passed'); submit(1)")
        assert (result.status, result.stdout, result.value) == ("ok", "", None)


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.write(3, b'{')",
        "import os; os.write(3, b'NaN')",
        "import os; os.write(3, b'[' * 5000 + b']' * 5000)",
        "import os; os.write(3, b'[' * 90 + b']' * 90)",
        "import os; os.write(3, b'1' * 6000)",
        "import os; os.write(3, b'\"' + bytes([92]) + b'ud800\"')",
        "import os; os.write(3, b'\\xff\\xfe')",
        "submit(float('inf'))",
    ],
)
def test_a_value_that_would_break_its_reader_is_none(code: str) -> None:
    assert execute(code).value is None
    assert execute("import os; os.write(3, b'[[1]]')").value == [[1]]


def test_a_value_is_handed_back_once() -> None:
    result = execute("submit(1)\nsubmit(2)")
    assert (result.value, result.status) == (1, "error")
    assert execute("submit(set())").status == "error"


def test_whatever_is_printed_becomes_text() -> None:
    result = execute(
        "import sys; sys.stdout.buffer.write(bytes([255, 65])); print('\\ud800'); print(input())", stdin="\ud800"
    )
    assert result.status == "ok"
    assert result.stdout.startswith("�A")
    json.dumps(result.stdout).encode()


def test_it_is_the_main_module_and_draws_the_same_numbers_every_time() -> None:
    source = "import random, dataclasses, pickle\n@dataclasses.dataclass\nclass A: x: int\n"
    source += "print(__name__, pickle.loads(pickle.dumps(A(3))), random.random(), list({'a', 'b', 'c', 'd'}))"
    first, second = execute(source), execute(source)
    assert first.status == "ok", first
    assert first.stdout.startswith("__main__ A(x=3)")
    assert first.stdout == second.stdout


def test_threads_are_waited_for() -> None:
    source = "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.05), print('late'))).start()"
    assert execute(source).stdout == "late\n"


def test_many_threads_get_their_own_results() -> None:
    before = set(threading.enumerate())

    def once(number: int) -> Result:
        return execute("print(int(input()) ** 2)", stdin=str(number))

    with ThreadPoolExecutor(8) as pool:
        assert [int(result.stdout) for result in pool.map(once, range(24))] == [n**2 for n in range(24)]
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", "a//b", "a\0b"])
def test_files_stay_in_the_programs_folder(path: str) -> None:
    with pytest.raises(ValueError, match="plain relative path"):
        execute("1", files={path: "x"})


def test_limits_are_above_nothing() -> None:
    with pytest.raises(ValueError, match="seconds"):
        Limits(seconds=0)
