"""Receivers: a real HTTP server and a real SMTP server on this machine; browsers of every role."""

import ssl
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509

from tests.certificates import write_self_signed
from tests.notifications.receivers import MailServer, WebServer
from tests.web_fixtures import *  # noqa: F403


@pytest.fixture
def web() -> Iterator[WebServer]:
    server = WebServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a key and a certificate of 127.0.0.1 that it signed itself."""
    return write_self_signed(tmp_path_factory.mktemp("tls") / "server.pem", [x509.IPAddress(ip_address("127.0.0.1"))])


@pytest.fixture
def trusted(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine trusts the servers' certificate."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))


@pytest.fixture
def mail_server(certificate: Path) -> Iterator[Callable[..., MailServer]]:
    """`mail_server(security="starttls", user="proctor", password="…")`."""
    started: list[MailServer] = []

    def start(**options: str) -> MailServer:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server = MailServer(context, **options)
        started.append(server)
        return server

    yield start
    for server in started:
        server.close()
