"""Destinations of notices in tests: servers that really listen and return given answers."""

import json
import socket
import ssl
import threading
import time
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP as Smtp
from aiosmtpd.smtp import AuthResult, Envelope, LoginPassword, Session


@dataclass(frozen=True, slots=True)
class Received:
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


@dataclass(frozen=True, slots=True)
class Answer:
    status: int = 200
    text: str = "ok"
    headers: dict[str, str] = field(default_factory=dict)
    wait_seconds: float = 0.0


class WebServer:
    """`answers` are given one after the other, then the last one repeatedly."""

    def __init__(self) -> None:
        self.answers = [Answer()]
        self.received: list[Received] = []
        ours = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                ours.received.append(Received(self.path, headers, body))
                self._answer(ours.answers.pop(0) if len(ours.answers) > 1 else ours.answers[0])

            do_GET = do_POST

            def _answer(self, answer: Answer) -> None:
                time.sleep(answer.wait_seconds)
                try:
                    self.send_response(answer.status)
                    for name, value in answer.headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(answer.text.encode())))
                    self.end_headers()
                    self.wfile.write(answer.text.encode())
                except OSError:
                    pass  # whoever asked did not wait

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class MailServer:
    """Keeps what it got. Recipients that begin with `nobody` are unknown to it."""

    def __init__(self, context: ssl.SSLContext, *, security: str = "none", user: str = "", password: str = "") -> None:
        self.received: list[Envelope] = []
        self._user, self._password = user.encode(), password.encode()
        needs_user = bool(user)
        options: dict[str, Any] = {"auth_required": needs_user, "authenticator": self._authenticate}
        if security == "starttls":
            options |= {"tls_context": context, "require_starttls": True}
        else:
            options["auth_require_tls"] = False
        ssl_context = context if security == "tls" else None
        self._controller = Controller(self, hostname="127.0.0.1", port=free_port(), ssl_context=ssl_context, **options)
        self.port = self._controller.port
        self._controller.start()

    @property
    def mails(self) -> list[Message]:
        return [message_from_bytes(envelope.content or b"", policy=default) for envelope in self.received]

    async def handle_RCPT(
        self, server: Smtp, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address.startswith("nobody"):
            return "550 No such person here"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Smtp, session: Session, envelope: Envelope) -> str:
        self.received.append(envelope)
        return "250 Kept"

    def _authenticate(
        self, server: Smtp, session: Session, envelope: Envelope, mechanism: str, data: object
    ) -> AuthResult:
        right = isinstance(data, LoginPassword) and (data.login, data.password) == (self._user, self._password)
        return AuthResult(success=right, handled=right)

    def close(self) -> None:
        self._controller.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
