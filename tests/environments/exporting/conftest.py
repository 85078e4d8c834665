"""Exported packages on disk, the real runtime, and an endpoint that answers as a script says."""

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from backend.domain.environments.manifest import read_manifest
from backend.environments.export import complete_package
from backend.environments.library import load_package
from backend.settings import PROJECT_ROOT

RUNTIME = PROJECT_ROOT / ".runtime" / "bin"


def export(name: str, folder: Path) -> Path:
    """Export a built-in environment to a folder with its name."""
    files = load_package(name)
    target = folder / name
    for path, text in complete_package(files, read_manifest(files["openenv.yaml"])).items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_text(text)
    return target


def run(folder: Path, *command: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """A command of the runtime, in the export's folder."""
    surroundings = {"PATH": f"{RUNTIME}:{os.environ['PATH']}", "HOME": str(folder), **variables}  # noqa: TID251
    program = str(RUNTIME / command[0])
    return subprocess.run(
        [program, *command[1:]], cwd=folder, env=surroundings, capture_output=True, text=True, timeout=110
    )


@dataclass
class Endpoint:
    """Speaks OpenAI's chat completions; `answer` says what, as text, a call {name, arguments} or several."""

    url: str
    answer: Callable[[list[dict[str, Any]]], str | dict[str, Any] | list[dict[str, Any]]]
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            speaking.asked.append(body)
            speaking.keys.add(self.headers["authorization"])
            said = speaking.answer(body["messages"])
            message: dict[str, Any] = {"role": "assistant", "content": said if isinstance(said, str) else None}
            if not isinstance(said, str):
                asked = said if isinstance(said, list) else [said]
                told = [{"name": call["name"], "arguments": json.dumps(call["arguments"])} for call in asked]
                message["tool_calls"] = [{"id": "1", "type": "function", "function": call} for call in told]
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            answer = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
            sent = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    speaking = Endpoint(f"http://127.0.0.1:{server.server_port}/v1", lambda messages: "")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield speaking
    server.shutdown()
    server.server_close()
    thread.join()
