"""What an execution may use, what came of it, and what can go wrong on our side."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

Status = Literal["ok", "error", "timeout", "memory", "output", "killed"]


class SandboxUnavailable(RuntimeError):
    """Here no sandbox can be made, so nothing is run."""


class SandboxFailed(RuntimeError):
    """The sandbox itself broke: this says nothing about the program."""


@dataclass(frozen=True)
class Limits:
    """What one execution may use. Larger values than the sandbox bears become the largest ones that it does."""

    seconds: float = 2.0
    """Of wall-clock time."""
    memory_mb: int = 256
    """Above the bare interpreter; also of all its processes together."""
    output_bytes: int = 65536
    """Of stdout and stderr each."""
    processes: int = 16
    """And threads."""
    file_mb: int = 8
    """All files together; there are at most 128 of them per MB."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise ValueError(f"{field.name} must be above 0")

    def within(self, bounds: "Limits") -> "Limits":
        """The smaller value of each."""
        mine, theirs = asdict(self), asdict(bounds)
        return Limits(**{name: min(value, theirs[name]) for name, value in mine.items()})


MOST = Limits(seconds=600.0, memory_mb=4096, output_bytes=4 << 20, processes=64, file_mb=256)
"""What any sandbox bears."""


@dataclass(frozen=True)
class Result:
    """What came of an execution."""

    status: Status
    """ok: it ended by itself with exit code 0. error: with another. killed: by a signal. The rest are its limits."""
    stdout: str
    stderr: str
    exit_code: int | None
    """Never trust it for a score: whoever wrote the program chooses it."""
    seconds: float
    """Wall-clock time of the program alone."""
    value: Any = None
    """What the program handed to `submit(value)`, through JSON; None: nothing or nothing sound."""
    cpu_seconds: float = 0.0
    """Of all its processes."""
