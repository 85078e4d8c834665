"""Each parser of foreign bytes, fuzzed for a moment (`.ci/run` takes longer), and on every input that broke it."""

from pathlib import Path

import pytest

from tests.security.fuzz.engine import Broken, Target, crashers, execute, fuzz
from tests.security.fuzz.targets import TARGETS

pytestmark = pytest.mark.slow

SECONDS = 0.3
SEED = 1
KEPT = [(name, path) for name in TARGETS for path in crashers(name)]


@pytest.mark.parametrize("name", TARGETS)
def test_a_parser_raises_only_what_it_declares(name: str):
    report = fuzz(TARGETS[name], SECONDS, SEED)
    assert [failure.reason for failure in report.failures] == []
    assert report.executions > len(TARGETS[name].seeds)


@pytest.mark.parametrize(("name", "path"), KEPT, ids=[f"{name}-{path.name}" for name, path in KEPT])
def test_an_input_that_broke_a_parser_no_longer_does(name: str, path: Path):
    execute(TARGETS[name], path.read_bytes())


def test_the_harness_sees_an_undeclared_exception_and_a_hang():
    def divide(data: bytes) -> float:
        return 1 / (len(data) - 5)

    def hang(data: bytes) -> None:
        while len(data) == 5:
            pass

    with pytest.raises(Broken, match="ZeroDivisionError"):
        execute(Target("divide", divide, (ValueError,), (b"",)), b"12345")
    with pytest.raises(Broken, match="took more than"):
        execute(Target("hang", hang, (ValueError,), (b"",)), b"12345")
    report = fuzz(Target("divide", divide, (ValueError,), (b"1234",)), 5.0)
    assert [len(failure.data) for failure in report.failures] == [5]
