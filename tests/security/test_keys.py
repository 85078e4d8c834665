"""A key or token goes only to the host that it belongs to."""

import http.server
import importlib.util
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest
import typer
from cryptography import x509

from backend.cli.connection import connect
from backend.settings import PROJECT_ROOT, get_settings
from proctor import Client, ProctorError
from tests.certificates import write_self_signed
from tests.environments.exporting.conftest import RUNTIME, export

PROVIDERS = ("api.openai.com", "router.huggingface.co", "huggingface.co", "api.other.example")
REPLY = b'{"id":"1","object":"chat.completion","created":0,"model":"m","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"hello"}}]}'  # noqa: E501


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate of the providers' names that it signed itself."""
    return write_self_signed(
        tmp_path_factory.mktemp("tls") / "providers.pem", [x509.DNSName(host) for host in PROVIDERS]
    )


@dataclass
class Providers:
    """Plays every host on the internet, behind a proxy that tunnels to itself."""

    url: str
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Host and Authorization of each request."""
    location: str = ""
    """Where it redirects to."""


@pytest.fixture
def providers(certificate: Path) -> Iterator[Providers]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_CONNECT(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.flush()
            self.connection = context.wrap_socket(self.connection, server_side=True)
            self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb")

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            found.asked.append((self.headers["Host"], self.headers.get("Authorization", "")))
            self.send_response(307 if found.location else 200)
            if found.location:
                self.send_header("Location", found.location)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(REPLY)))
            self.end_headers()
            self.wfile.write(REPLY)
            self.wfile.flush()

        do_GET = do_POST

        def finish(self) -> None:
            super().finish()
            self.connection.close()

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found = Providers(f"http://127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield found
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export("tictactoe", tmp_path_factory.mktemp("export"))


def ask(
    exported: Path, providers: Providers, certificate: Path, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """One question by the exported script's own model."""
    surroundings = {
        "PATH": str(RUNTIME),
        "HTTPS_PROXY": providers.url,
        "SSL_CERT_FILE": str(certificate),
        "MODEL_NAME": "m",
        **variables,
    }
    program = "import inference; print(inference.Model().reply([{'role': 'user', 'content': 'hello'}], [])['content'])"
    command = [str(RUNTIME / "python"), "-c", program]
    return subprocess.run(command, cwd=exported, env=surroundings, capture_output=True, text=True, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "sent"),
    [
        ({"OPENAI_API_KEY": "sk-openai"}, ("api.openai.com", "Bearer sk-openai")),
        ({"OPENAI_API_KEY": "sk-openai", "HF_TOKEN": "hf_secret"}, ("api.openai.com", "Bearer sk-openai")),
        (
            {
                "API_BASE_URL": "https://router.huggingface.co/v1",
                "HF_TOKEN": "hf_secret",
                "OPENAI_API_KEY": "sk-openai",
            },
            ("router.huggingface.co", "Bearer hf_secret"),
        ),
        (
            {"API_BASE_URL": "https://API.OpenAI.com/v1", "API_KEY": "chosen", "OPENAI_API_KEY": "sk-openai"},
            ("api.openai.com", "Bearer chosen"),
        ),
        (
            {"API_BASE_URL": "https://api.other.example/v1", "API_KEY": "chosen", "HF_TOKEN": "hf_secret"},
            ("api.other.example", "Bearer chosen"),
        ),
        (
            {"API_BASE_URL": "https://api.other.example/v1", "OPENAI_API_KEY": "sk-openai", "HF_TOKEN": "hf_secret"},
            ("api.other.example", "Bearer none"),
        ),
    ],
)
def test_an_exported_script_sends_the_key_of_the_host_that_it_asks(
    exported: Path, providers: Providers, certificate: Path, variables: dict[str, str], sent: tuple[str, str]
) -> None:
    done = ask(exported, providers, certificate, **variables)
    assert done.stdout.strip() == "hello", done.stderr
    assert providers.asked == [sent]


@pytest.mark.slow
@pytest.mark.parametrize(
    "variables",
    [
        {"HF_TOKEN": "hf_secret"},
        {"API_KEY": "of another provider"},
        {"API_BASE_URL": "https://router.huggingface.co/v1", "OPENAI_API_KEY": "sk-openai"},
        {"API_BASE_URL": "https://api.openai.com/v1", "HF_TOKEN": "hf_secret"},
    ],
)
def test_an_exported_script_asks_for_the_key_rather_than_send_another_ones(
    exported: Path, providers: Providers, certificate: Path, variables: dict[str, str]
) -> None:
    done = ask(exported, providers, certificate, **variables)
    assert providers.asked == []
    assert done.returncode == 1
    assert "set " in done.stderr
    assert not any(value in done.stderr for name, value in variables.items() if name != "API_BASE_URL")


@pytest.mark.slow
def test_an_exported_script_sends_no_providers_key_in_the_clear(
    exported: Path, providers: Providers, certificate: Path
) -> None:
    for url, name in (("http://api.openai.com/v1", "OPENAI_API_KEY"), ("http://huggingface.co/v1", "HF_TOKEN")):
        ask(exported, providers, certificate, API_BASE_URL=url, HTTP_PROXY=providers.url, **{name: "secret"})
    assert "Bearer secret" not in str(providers.asked)


@pytest.mark.parametrize("host", ["evil-huggingface.co", "huggingface.co.evil.example", "api.openai.com.evil.example"])
def test_hosts_that_only_look_like_a_provider_get_no_key(exported: Path, host: str) -> None:
    program = f"import inference; print(inference.key_for('https://{host}/v1'))"
    surroundings = {"PATH": str(RUNTIME), "HF_TOKEN": "hf_secret", "OPENAI_API_KEY": "sk-openai"}
    command = [str(RUNTIME / "python"), "-c", program]
    done = subprocess.run(command, cwd=exported, env=surroundings, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "none"


def test_the_template_of_a_judge_follows_no_redirect_with_its_token(providers: Providers) -> None:
    judge = _module(PROJECT_ROOT / "workers/library/templates/judged_answer/server/judge.py")
    asks = judge.EndpointJudge(f"{providers.url}/v1/chat/completions", "m", token="judge-token")
    with pytest.raises(ValueError, match="did not answer with a number"):  # it was asked: the honest twin
        asks("question", "answer")
    assert providers.asked[0][1] == "Bearer judge-token"
    other = providers.url.replace("127.0.0.1", "localhost")
    for status_location in (f"{other}/elsewhere", "/elsewhere"):
        providers.asked.clear()
        providers.location = status_location
        with pytest.raises(OSError, match="30"):
            asks("question", "answer")
        assert len(providers.asked) == 1


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("judge_of_the_template", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


# the command line


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A data folder with the administrator's token that `proctor up` left."""
    (tmp_path / "cli-token").write_text("pt_local_administrator\n")
    monkeypatch.setenv("PROCTOR_DATA", str(tmp_path))
    monkeypatch.delenv("PROCTOR_TOKEN", raising=False)
    get_settings.cache_clear()
    connect.cache_clear()
    yield tmp_path
    if connect.cache_info().currsize:
        connect().close()
    monkeypatch.undo()
    get_settings.cache_clear()
    connect.cache_clear()


def test_the_command_line_sends_the_local_token_to_no_other_server(
    data: Path, providers: Providers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PROCTOR_URL", providers.url)
    get_settings.cache_clear()
    with pytest.raises(typer.Exit):
        connect()
    assert "PROCTOR_TOKEN" in capsys.readouterr().err
    monkeypatch.setenv("PROCTOR_TOKEN", "pt_of_that_server")
    get_settings.cache_clear()
    connect().post("/runs")
    assert [key for _, key in providers.asked] == ["Bearer pt_of_that_server"]


def test_the_command_line_sends_the_local_token_to_the_proctor_of_the_data_folder(
    data: Path, providers: Providers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.cli.connection.running_at", lambda _: providers.url)
    connect().post("/runs")
    connect().close()
    connect.cache_clear()
    monkeypatch.setenv("PROCTOR_URL", providers.url + "/")
    get_settings.cache_clear()
    connect().post("/runs")
    assert [key for _, key in providers.asked] == ["Bearer pt_local_administrator"] * 2


def test_the_command_line_follows_no_redirect_with_its_token(providers: Providers) -> None:
    client = Client(providers.url, "pt_token")
    client.post("/runs")  # the honest twin
    providers.location = providers.url.replace("127.0.0.1", "localhost") + "/elsewhere"
    for ask_it in (lambda: client.post("/runs"), lambda: client.download("/x", Path("never"))):
        providers.asked.clear()
        with pytest.raises(ProctorError, match="redirects to http://localhost"):
            ask_it()
        assert len(providers.asked) == 1
    client.close()
    assert not Path("never").exists()
