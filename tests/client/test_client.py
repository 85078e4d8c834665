"""The Python client against a server."""

import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from fastapi import FastAPI
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.settings import PROJECT_ROOT
from proctor import Client, ProctorError
from proctor.base import Job
from tests.factories import make_person
from tests.operations.conftest import make_token
from tests.web_fixtures import *  # noqa: F403
from tests.web_server import web_served


@pytest.fixture
def client(app: FastAPI, session: Session) -> Iterator[Client]:
    with web_served(app) as url, Client(url, make_token(app, session, Role.ADMIN)) as client:
        yield client


def test_methods_return_typed_models(client: Client) -> None:
    me = client.team.whoami()
    assert (me.role.value, me.is_token) == ("admin", True)


@pytest.mark.slow
def test_lists_page_through_everything_and_stop_at_a_limit(client: Client) -> None:
    for number in range(3):
        client.members.invite(email=f"m{number}@example.org", name=f"Member {number}")
    everyone = [event.action for event in client.audit.list()]
    assert len(everyone) >= 3
    assert len(list(client.audit.list(limit=2))) == 2
    pages = client.pages("/audit", limit=3)
    assert [each["action"] for each in pages] == everyone[:3]


def test_errors_say_what_is_wrong_with_which_field(client: Client) -> None:
    with pytest.raises(ProctorError) as refused:
        client.members.invite(email="nobody", name="Nobody")
    assert refused.value.status == 422
    assert list(refused.value.fields) == ["email"]
    with pytest.raises(ProctorError, match="There is no such member"):
        client.members.update("someone@example.org", disabled=True)


def test_names_and_ids_both_address_a_row(client: Client, session: Session) -> None:
    person = make_person(session, Role.VIEWER)
    assert client.members.update(person.id, role="author").role.value == "author"
    assert client.members.update(person.email, role="reviewer").role.value == "reviewer"


def test_no_token_and_no_server_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROCTOR_TOKEN", raising=False)
    with pytest.raises(ProctorError, match="No API token"):
        Client("http://127.0.0.1:9")
    with Client("http://127.0.0.1:9", "pt_x") as client, pytest.raises(ProctorError, match="No Proctor server answers"):
        client.team.whoami()


@pytest.fixture
def slow_job() -> Iterator[str]:
    """A server with a job that finishes at its third look."""
    looks = iter([False, False, True, True])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_finished = next(looks)
            body = {
                "is_finished": is_finished,
                "is_successful": is_finished,
                "done": 2,
                "total": 3,
                "message": "graded",
            }
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_waiting_returns_the_finished_job_or_times_out(slow_job: str) -> None:
    queued = Job(is_finished=False, is_successful=False).polled_at("/jobs/1")
    with Client(slow_job, "pt_x") as client:
        with pytest.raises(TimeoutError, match="still running"):
            client.wait(queued, timeout=0, progress=False)
        done = client.wait(queued, progress=False)
    assert (done.is_finished, done.is_successful, done.done) == (True, True, 2)


@pytest.mark.slow
def test_the_package_stands_alone(tmp_path: Path) -> None:
    """Built and installed alone, it imports neither the server nor torch."""
    source, target = tmp_path / "source", tmp_path / "target"
    shutil.copytree(PROJECT_ROOT / "proctor", source, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(target), str(source)], check=True)
    program = f"""
import sys
sys.path.insert(0, {str(target)!r})
from proctor import Client
import proctor, proctor.models
assert proctor.__file__.startswith({str(target)!r}), proctor.__file__
print([name for name in ("backend", "workers", "torch", "fastapi", "sqlalchemy", "typer") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.strip() == "[]"


def test_client_and_server_have_one_version() -> None:
    versions = [
        tomllib.loads((PROJECT_ROOT / file).read_text())["project"]["version"]
        for file in ("pyproject.toml", "proctor/pyproject.toml")
    ]
    assert versions[0] == versions[1]
