"""`proctor` in this process, as an administrator, with a web server of this process and a worker for its jobs."""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import typer

from backend.cli.connection import connect
from backend.cli.main import main
from backend.core.session import transaction
from backend.environments.library import load_package
from backend.environments.service import import_package
from backend.policies.service import ensure_scripted_policies
from backend.settings import get_settings
from backend.team.service import issue_local_token
from tests.web_server import web_of_installation, web_served


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Result]

command_tree = cache(typer.main.get_command)
"""All commands of an application: a process builds them for its one command, a test process once for all of its."""


@contextmanager
def command_line(
    url: str, token: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    """Runs a command against this Proctor and says how it went."""
    monkeypatch.setenv("PROCTOR_URL", url)
    monkeypatch.setenv("PROCTOR_TOKEN", token)
    monkeypatch.setattr(typer.main, "get_command", command_tree)
    get_settings.cache_clear()
    connect.cache_clear()

    def run(*arguments: str) -> Result:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["proctor", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        return Result(int(ended.value.code or 0), shown.out, shown.err)

    yield run
    connect().close()
    connect.cache_clear()
    get_settings.cache_clear()


@pytest.fixture
def server(installation: None) -> Iterator[str]:
    with web_served(web_of_installation()) as url:
        yield url


@pytest.fixture
def proctor(server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """The command line of an installation that has tic-tac-toe and the scripted policies."""
    with transaction() as session:
        token = issue_local_token(session)
        ensure_scripted_policies(session)
        import_package(session, "tictactoe", load_package("tictactoe"))
    with command_line(server, token, monkeypatch, capsys) as run:
        yield run


@contextmanager
def repeated(work: Callable[[], object]) -> Iterator[None]:
    """Run jobs during the commands: another thread calls `work` continuously."""
    over = threading.Event()

    def go_on() -> None:
        while not over.wait(0.05):
            work()

    thread = threading.Thread(target=go_on)
    thread.start()
    yield
    over.set()
    thread.join()
