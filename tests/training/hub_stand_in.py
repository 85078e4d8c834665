"""The Hugging Face Hub's endpoints for making a repository and committing to it, on this machine. It is a stand-in: the
real Hub is never called by a test."""

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

COMMIT = "c" * 40


@dataclass
class Hub:
    """The recorded requests."""

    url: str = ""
    token: str = "hf_writes"
    """The user with write access."""
    repositories: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    """Of the newest commit, also the large ones."""
    summaries: list[str] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)
    """Large files by their SHA-256, before the commit."""
    seen_tokens: list[str] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_GET(self) -> None:
        self._answer({"error": "Repository not found"}, 404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self._may_write():
            self._answer({"error": "Invalid user token."}, 401)
        elif self.path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        elif self.path == "/api/repos/create":
            self.hub.repositories.append(json.loads(body))
            self._answer({"url": f"{self.hub.url}/me/tiny"})
        elif "/preupload/" in self.path:
            self._answer({"files": [_mode(each) for each in json.loads(body)["files"]]})
        elif self.path.endswith("/info/lfs/objects/batch"):
            self._answer({"transfer": "basic", "objects": [self._place(each) for each in json.loads(body)["objects"]]})
        elif "/commit/" in self.path:
            self._take(body)
            self._answer({"commitUrl": f"{self.hub.url}/me/tiny/commit/{COMMIT}", "commitOid": COMMIT})
        else:
            self._answer({"error": f"no such endpoint {self.path}"}, 404)

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.hub.objects[hashlib.sha256(content).hexdigest()] = content
        self._answer({})

    def _place(self, wanted: dict[str, Any]) -> dict[str, Any]:
        actions = {"upload": {"href": f"{self.hub.url}/objects/{wanted['oid']}"}}
        return {"oid": wanted["oid"], "size": wanted["size"], "authenticated": True, "actions": actions}

    def _take(self, body: bytes) -> None:
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            match line["key"]:
                case "header":
                    self.hub.summaries.append(value["summary"])
                case "file":
                    self.hub.files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    self.hub.files[value["path"]] = self.hub.objects[value["oid"]]

    def _may_write(self) -> bool:
        self.hub.seen_tokens.append(self.headers.get("Authorization", "").removeprefix("Bearer "))
        return self.hub.seen_tokens[-1] == self.hub.token

    def _answer(self, value: Any, status: int = 200) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing."""


def _mode(file: dict[str, Any]) -> dict[str, Any]:
    is_large = file["path"].endswith(".safetensors")
    return {"path": file["path"], "uploadMode": "lfs" if is_large else "regular", "shouldIgnore": False}


@contextmanager
def running_hub() -> Iterator[Hub]:
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
