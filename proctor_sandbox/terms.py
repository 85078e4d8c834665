"""Limits and results of an execution, and errors of the sandbox itself."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

Status = Literal["ok", "error", "timeout", "memory", "output", "killed"]


class SandboxUnavailable(RuntimeError):
    """No sandbox can be made here, so nothing is run."""


class SandboxFailed(RuntimeError):
    """The sandbox itself broke, whatever the program did."""


@dataclass(frozen=True)
class Limits:
    """Limits of one execution. Values above the sandbox's maximum are reduced to it."""

    seconds: float = 2.0
    """Wall-clock time."""
    memory_mb: int = 256
    """Memory above the bare interpreter, of each process and of all processes together."""
    output_bytes: int = 65536
    """Size of stdout, and of stderr."""
    processes: int = 16
    """Processes and threads together."""
    file_mb: int = 8
    """Size of all files together; at most 128 files per MB."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise ValueError(f"{field.name} must be above 0")

    def within(self, bounds: "Limits") -> "Limits":
        """Return the smaller value of each limit."""
        mine, theirs = asdict(self), asdict(bounds)
        return Limits(**{name: min(value, theirs[name]) for name, value in mine.items()})


MOST = Limits(seconds=600.0, memory_mb=4096, output_bytes=4 << 20, processes=64, file_mb=256)
"""Maximum of each limit in any sandbox."""


@dataclass(frozen=True)
class Result:
    """The result of an execution."""

    status: Status
    """ok: exit code 0. error: another exit code. killed: ended by a signal. Others: the limit that it exceeded."""
    stdout: str
    stderr: str
    exit_code: int | None
    """Never base a score on it: the program's author chooses it."""
    seconds: float
    """Wall-clock time of the program alone."""
    value: Any = None
    """The value that the program passed to `submit(value)`, through JSON. None: nothing, or nothing valid."""
    cpu_seconds: float = 0.0
    """CPU time of all its processes."""
