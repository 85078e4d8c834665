"""`proctor env push|pull|diff`: a folder and the draft are two copies of one thing; and the way to the Hub."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from backend.core.session import transaction
from backend.environments.drafts import save_draft
from backend.environments.queries import get_draft, get_environment
from tests.ops.commands import Command, proctor, server

__all__ = ["proctor", "server"]

pytestmark = pytest.mark.slow


def saved_elsewhere(**changes: str) -> None:
    """Another person changes files of the draft in the browser."""
    with transaction() as session:
        environment = get_environment(session, "dice")
        draft = get_draft(session, environment)
        save_draft(session, None, environment, draft.files | {f"{n}.md": t for n, t in changes.items()}, draft.revision)


def draft_files() -> dict[str, str]:
    with transaction() as session:
        return get_draft(session, get_environment(session, "dice")).files


@pytest.fixture
def dice(proctor: Command, tmp_path: Path) -> Path:
    """A folder that was pushed."""
    folder = tmp_path / "dice"
    assert proctor("env", "init", "dice", "--folder", str(folder)).status == 0
    assert proctor("env", "push", str(folder)).status == 0
    return folder


def test_a_draft_that_continued_is_not_overwritten(proctor: Command, dice: Path) -> None:
    (dice / "README.md").write_text("mine")
    saved_elsewhere(README="theirs", NEWS="news")
    refused = proctor("env", "push", str(dice))
    assert refused.status == 1
    assert "in both:       README.md" in refused.err
    assert "changed there: NEWS.md, README.md" in refused.err
    assert draft_files()["README.md"] == "theirs"


def test_a_file_that_is_no_text_goes_both_ways(proctor: Command, dice: Path, tmp_path: Path) -> None:
    (dice / "board.bin").write_bytes(b"\x00\xff")
    assert proctor("env", "push", str(dice)).status == 0
    assert "board.bin.base64" in draft_files()
    assert proctor("env", "pull", "dice", "--folder", str(tmp_path / "other")).status == 0
    assert (tmp_path / "other" / "board.bin").read_bytes() == b"\x00\xff"


def test_keeping_ones_own_takes_force(proctor: Command, dice: Path) -> None:
    (dice / "README.md").write_text("mine")
    saved_elsewhere(README="theirs")
    assert proctor("env", "push", str(dice), "--force").status == 0
    assert draft_files()["README.md"] == "mine"
    (dice / "README.md").write_text("mine again")
    assert proctor("env", "push", str(dice)).status == 0


def test_taking_theirs_is_a_pull_and_deleted_files_go(proctor: Command, dice: Path) -> None:
    saved_elsewhere(NEWS="news")
    assert proctor("env", "pull", "dice", "--folder", str(dice)).status == 0
    assert (dice / "NEWS.md").read_text() == "news"
    with transaction() as session:
        environment = get_environment(session, "dice")
        draft = get_draft(session, environment)
        fewer = {path: text for path, text in draft.files.items() if path != "NEWS.md"}
        save_draft(session, None, environment, fewer, draft.revision)
    assert proctor("env", "pull", "dice", "--folder", str(dice)).status == 0
    assert not (dice / "NEWS.md").exists()


def test_the_difference_is_shown_line_by_line(proctor: Command, dice: Path) -> None:
    assert (proctor("env", "diff", str(dice)).status, draft_files().keys()) == (0, draft_files().keys())
    saved_elsewhere(README="theirs\n")
    shown = proctor("env", "diff", str(dice))
    assert shown.status == 1
    assert "--- draft/README.md" in shown.out
    assert "-theirs" in shown.out


def test_a_folder_that_never_met_the_draft_does_not_overwrite_unpublished_work(proctor: Command, dice: Path) -> None:
    saved_elsewhere(README="theirs")
    (dice / ".proctor" / "draft.json").unlink()
    refused = proctor("env", "push", str(dice))
    assert (refused.status, "never published" in refused.err) == (1, True)


def test_a_version_is_pulled_as_a_package_that_runs_automatically(proctor: Command, dice: Path, tmp_path: Path) -> None:
    proctor("env", "push", str(dice), "--publish")
    whole, bare = tmp_path / "whole", tmp_path / "bare"
    assert proctor("env", "pull", "dice", "--version", "1", "--folder", str(whole)).status == 0
    assert proctor("env", "pull", "dice@1", "--bare", "--folder", str(bare)).status == 0
    assert (whole / "inference.py").exists()
    assert not (bare / "inference.py").exists()
    assert (whole / "models.py").read_text() == (dice / "models.py").read_text() == (bare / "models.py").read_text()


class Hub:
    """The Hub's answers to the creation of a Space and one commit; it records its requests."""

    def __init__(self) -> None:
        self.created: dict[str, Any] = {}
        self.files: list[str] = []
        self.token = ""
        self.url = ""

    def answer(self, path: str, body: bytes, token: str) -> dict[str, Any]:
        self.token = token
        if path.endswith("/repos/create"):
            self.created = json.loads(body)
            return {"url": f"{self.url}/spaces/ada/dice", "name": "ada/dice"}
        if "/preupload/" in path:
            asked = json.loads(body)["files"]
            return {"files": [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in asked]}
        if "/commit/" in path:
            lines = [json.loads(line) for line in body.splitlines()]
            self.files = sorted(line["value"]["path"] for line in lines if line["key"] == "file")
            return {"commitUrl": f"{self.url}/spaces/ada/dice/commit/1", "commitOid": "1", "hookOutput": ""}
        return {"id": "ada/dice", "sha": "0", "siblings": []}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    kept = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            sent = json.dumps(kept.answer(self.path, body, self.headers.get("authorization", ""))).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        do_GET = do_POST

        def log_message(self, *_: object) -> None: ...

    serving = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=serving.serve_forever, daemon=True)
    thread.start()
    from huggingface_hub import constants, hf_api

    kept.url = url = f"http://127.0.0.1:{serving.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(hf_api.constants, "ENDPOINT", url)
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    yield kept
    serving.shutdown()
    serving.server_close()
    thread.join()


def test_a_dry_run_shows_everything_and_sends_nothing(proctor: Command, dice: Path, hub: Hub) -> None:
    shown = proctor("env", "push", str(dice), "--to-hub", "ada/dice", "--dry-run")
    assert shown.status == 0
    assert "Nothing was sent" in shown.out
    assert "inference.py" in shown.out
    assert (hub.created, hub.files) == ({}, [])


def test_a_space_is_created_and_gets_the_whole_package(proctor: Command, dice: Path, hub: Hub) -> None:
    sent = proctor("env", "push", str(dice), "--to-hub", "ada/dice", "--private", "--json")
    assert sent.status == 0, sent.err
    assert (hub.created["type"], hub.created["sdk"], hub.created["visibility"]) == ("space", "docker", "private")
    assert hub.files == sent.json["files"]
    assert {"Dockerfile", "inference.py", "openenv.yaml", "server/app.py"} <= set(hub.files)
    assert not any(path.startswith(".proctor") for path in hub.files)
    assert hub.token == "Bearer hf_test"


@pytest.mark.parametrize("name", ["dice", "../x/y", "ada/dice/more"])
def test_a_name_that_is_no_space_is_refused(proctor: Command, dice: Path, name: str) -> None:
    assert proctor("env", "push", str(dice), "--to-hub", name, "--dry-run").status == 2
