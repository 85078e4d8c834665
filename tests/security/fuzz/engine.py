"""Runs a target on mutated seeds for a bounded time. Hypothesis draws the mutations and shrinks what fails."""

import hashlib
import os
import signal
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

CRASHERS = Path(__file__).parent / "crashers"
LIMIT_SECONDS = 1.0
"""Processor time of one execution."""
MAX_BYTES = 20_000
_BATCH = 100
_LEAST = 10
"""Mutated inputs that are executed however long the seeds took."""


@dataclass(frozen=True)
class Target:
    """One parser of foreign bytes."""

    name: str
    run: Callable[[bytes], object]
    declared: tuple[type[Exception], ...]
    """Exceptions that it may raise. Everything else is a failure."""
    seeds: tuple[bytes, ...]
    words: tuple[bytes, ...] = ()
    """Pieces that are inserted, such as brackets and keywords."""


@dataclass
class Failure:
    """An input that broke a target."""

    target: str
    data: bytes
    reason: str

    def save(self) -> Path:
        """Keep the input as a regression test."""
        folder = CRASHERS / self.target
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / hashlib.sha256(self.data).hexdigest()[:16]
        path.write_bytes(self.data)
        return path


@dataclass
class Report:
    """The result of one target."""

    target: str
    executions: int = 0
    failures: list[Failure] = field(default_factory=list)


class Broken(AssertionError):
    """A target raised what it does not declare, or took too long."""


class _TimeOver(BaseException):
    """Raised by the timer; no parser catches it by accident."""


@contextmanager
def _time_limit() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise _TimeOver

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def execute(target: Target, data: bytes) -> None:
    """One execution. Raises Broken."""
    try:
        with _time_limit():
            target.run(data)
    except target.declared:
        pass
    except _TimeOver:
        raise Broken(f"took more than {LIMIT_SECONDS} s") from None
    except (Exception, MemoryError) as error:
        raise Broken(f"{type(error).__name__}: {str(error)[:300]}") from error


def crashers(target: str) -> list[Path]:
    return sorted(path for path in (CRASHERS / target).glob("*") if path.is_file())


def fuzz(target: Target, seconds: float, seed: int = 0, current: Path | None = None) -> Report:
    """Run a target for these seconds of processor time, or until it breaks.

    `current`: a file that has the input of each execution.
    """
    report = Report(target.name)
    for known in target.seeds:
        execute(target, known)
        report.executions += 1
    batch, ends = 0, time.process_time() + seconds
    while time.process_time() < ends and not report.failures:
        _run_batch(target, report, seed * 1_000_003 + batch, ends, current)
        batch += 1
    return report


def _run_batch(target: Target, report: Report, seed: int, ends: float, current: Path | None) -> None:
    broken: list[bytes] = []

    @hypothesis.seed(seed)
    @settings(
        max_examples=_BATCH,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @hypothesis.given(inputs(target))
    def one(data: bytes) -> None:
        if not broken and time.process_time() > ends and report.executions >= len(target.seeds) + _LEAST:
            return
        report.executions += 1
        if current is not None:
            current.write_bytes(data)
        try:
            execute(target, data)
        except Broken:
            broken.append(data)
            raise

    try:
        one()
    except Broken as reason:
        report.failures.append(Failure(target.name, broken[-1], str(reason)))


def inputs(target: Target) -> st.SearchStrategy[bytes]:
    """Seeds with a few changes. They are drawn as one piece of bytes, which is fast and shrinks well."""
    return st.binary(max_size=1 + 6 * _CHANGE.size).map(lambda drawn: mutated(target, drawn))


_CHANGE = struct.Struct(">HBBHB")
_COMMON = (b"", b"\x00", b"\xff", b"9" * 30, b"-1", b"1e999", b'"', b"\n")
_TIMES = (1, 1, 1, 1, 1, 2, 40, 700)


def mutated(target: Target, drawn: bytes) -> bytes:
    """One seed, with pieces removed, inserted, doubled or repeated often as the drawn bytes say."""
    data = target.seeds[drawn[0] % len(target.seeds)] if drawn else target.seeds[0]
    for place in range(1, len(drawn) - _CHANGE.size + 1, _CHANGE.size):
        start, removed, kind, choice, times = _CHANGE.unpack_from(drawn, place)
        start %= len(data) + 1
        end = min(len(data), start + removed % 13)
        match kind % 5:
            case 0:
                piece = choice.to_bytes(2, "big")
            case 1:
                piece = data[start:end]
            case 2:
                piece = target.seeds[choice % len(target.seeds)][:400]
            case _:
                words = (*target.words, *_COMMON)
                piece = words[choice % len(words)]
        data = (data[:start] + piece * _TIMES[times % len(_TIMES)] + data[end:])[:MAX_BYTES]
    return data


def scratch_file() -> Path:
    descriptor, name = tempfile.mkstemp(prefix="fuzz-")
    os.close(descriptor)
    return Path(name)
