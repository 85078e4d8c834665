"""Processes of training that begin at once: forks of one that has imported, in ten seconds, what they need."""

import multiprocessing
import os
import sys
from importlib import import_module
from pathlib import Path

from tests.installation import forget_settings

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__, "workers.training.run"])


class Child:
    """`python -m MODULE ARGUMENT` with these variables, appending to this log; polled like `subprocess.Popen`."""

    def __init__(self, module: str, argument: str, *, log: Path) -> None:
        self._process = _CONTEXT.Process(target=_run, args=(module, argument, str(log), dict(os.environ)), daemon=True)  # noqa: TID251
        self._process.start()

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, seconds: float | None = None) -> int | None:
        """The exit status; None while it runs."""
        self._process.join(seconds)
        return self.poll()

    def kill(self) -> None:
        self._process.kill()


def _run(module: str, argument: str, log: str, variables: dict[str, str]) -> None:
    os.environ.clear()  # noqa: TID251
    os.environ.update(variables)  # noqa: TID251
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = [module, argument]
    forget_settings()
    sys.exit(import_module(module).main())
