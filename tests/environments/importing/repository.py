"""A real git server on loopback: git's own http-backend behind a small HTTP server, with bad moods."""

import os
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_IDENTITY = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_CONFIG_GLOBAL": "/dev/null",
}


def git(folder: Path, *arguments: str, given: bytes = b"") -> str:
    variables = {**os.environ, **_IDENTITY}  # noqa: TID251
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], input=given, env=variables, check=True, capture_output=True
    )
    return done.stdout.decode().strip()


@dataclass
class Repository:
    """A repository that the server serves as `/name.git`."""

    folder: Path
    url: str
    asked: list[str] = field(default_factory=list)
    """All requested paths."""

    def commit(self, files: Mapping[str, bytes], branch: str = "main") -> None:
        for path, data in files.items():
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).write_bytes(data)
        git(self.folder, "add", "-A")
        git(self.folder, "commit", "-qm", "more", "--allow-empty")
        git(self.folder, "branch", "-f", branch) if branch != "main" else None

    def commit_tree(self, tree: str) -> None:
        """Make a tree, which no working tree could hold, the newest commit's."""
        commit = git(self.folder, "commit-tree", "-m", "odd", tree)
        git(self.folder, "update-ref", "refs/heads/main", commit)


@contextmanager
def served(folder: Path, mood: str = "") -> Iterator[Repository]:
    """`mood`: "slow" sends nothing, "elsewhere" redirects to a repository that would do."""
    home = folder / "it.git"
    home.mkdir()
    git(home, "init", "-q", "-b", "main")
    repository = Repository(home, "")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            repository.asked.append(self.path)
            if self.path.startswith("/elsewhere/"):
                self.send_response(302)
                self.send_header("Location", self.path.replace("/elsewhere/", "/", 1))
                self.end_headers()
            elif mood == "slow":
                time.sleep(30)
            else:
                self._answer()

        do_POST = do_GET

        def _answer(self) -> None:
            path, _, query = self.path.partition("?")
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            variables = {
                **os.environ,  # noqa: TID251
                "GIT_PROJECT_ROOT": str(folder),
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(length),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            }
            done = subprocess.run(["git", "http-backend"], input=body, env=variables, capture_output=True, check=True)
            head, _, content = done.stdout.partition(b"\r\n\r\n")
            fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
            self.send_response(int(fields.pop("Status", "200").split()[0]))
            for name, value in fields.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    repository.url = f"http://127.0.0.1:{server.server_port}/it.git"
    try:
        yield repository
    finally:
        server.shutdown()
        server.server_close()
