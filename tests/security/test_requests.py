"""Whatever a request holds, the answer is one that the API's description names: no accident, no hang, no version."""

import asyncio
import itertools
import json
import re
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.web import server as web_server
from backend.web.api_description import describe
from backend.web.server import BoundedHttp
from tests import factories

HUGE = 10**30
PARAMETERS = ("1" + "0" * 30, "9223372036854775808", "-9223372036854775809", "2001-99-99", "%00", "%ED%A0%80", "%FF",
              "nan", "1e400", "[" * 2000, "(" * 3000)  # fmt: skip
VALUES: tuple[Any, ...] = (
    HUGE,
    2**63,
    -(2**63) - 1,
    1e308,
    "\x00",
    "\ud800",
    "2001-99-99",
    "[" * 5000,
    [HUGE],
    {"a": HUGE},
)


@pytest.fixture
def ids(session: Session) -> dict[str, str]:
    """Something real behind every id, so that the rest of the request is read."""
    version = factories.make_environment_version(session)
    run = factories.make_run(session, version)
    [rollout] = factories.make_rollouts(session, run, [[1, 1, 0]])
    flag = factories.make_flag(session, run, rollout)
    checkpoint = factories.make_checkpoint(session, factories.make_policy(session), run)
    found = {
        "run_id": run.id,
        "rollout_id": rollout.id,
        "flag_id": flag.id,
        "policy_id": run.policy_id,
        "version_id": version.id,
        "checkpoint_id": checkpoint.id,
        "person_id": factories.make_person(session).id,
        "name": version.environment.name,
        "number": 1,
    }
    return {name: str(value) for name, value in found.items()}


@pytest.fixture
def document(app: FastAPI) -> dict[str, Any]:
    return describe(app)


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if path != "/api/v1/me/password":
                yield method.upper(), path, operation


def url_of(path: str, ids: dict[str, str]) -> str:
    unknown = set(re.findall(r"\{(\w+)\}", path)) - set(ids)
    return path.format_map(ids | dict.fromkeys(unknown, str(uuid.uuid4())))


def check(answer: Any, operation: dict[str, Any], what: str) -> None:
    """It is described, and a refusal has the one form."""
    assert str(answer.status_code) in operation["responses"], f"{what}: {answer.status_code} {answer.text[:200]}"
    if answer.status_code >= 400:
        body = answer.json()
        assert set(body) == {"error", "detail", "fields"}, f"{what}: {body}"
        assert isinstance(body["detail"], str)
        assert all(isinstance(each, str) for each in body["fields"].values()), what


def sample(schema: dict[str, Any], schemas: dict[str, Any], depth: int = 0) -> Any:
    """A value that fits a schema, mostly: deep enough that routes read what is changed in it."""
    if "$ref" in schema and depth < 8:
        return sample(schemas[schema["$ref"].rpartition("/")[2]], schemas, depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return sample(schema[key][0], schemas, depth + 1)
    if "const" in schema or "enum" in schema:
        return schema.get("const", (schema.get("enum") or [None])[0])
    match schema.get("type"):
        case "object":
            return {name: sample(each, schemas, depth + 1) for name, each in schema.get("properties", {}).items()}
        case "array":
            return [sample(schema.get("items", {}), schemas, depth + 1)]
        case "string":
            return str(uuid.uuid4()) if schema.get("format") == "uuid" else "abcdef"
        case "integer" | "number":
            return max(1, schema.get("minimum", 1))
        case "boolean":
            return False
    return None


@pytest.mark.slow
def test_forged_parameters_get_an_answer_that_is_described(
    admin: TestClient, document: dict[str, Any], ids: dict[str, str]
) -> None:
    """Each parameter gets a few of the values, the next one the next few."""
    values = itertools.cycle(PARAMETERS)
    asked = 0
    for method, path, operation in operations(document):
        if method != "GET" or path.endswith("/events"):
            continue
        for parameter in operation.get("parameters", ()):
            for value in itertools.islice(values, 4):
                name = parameter["name"]
                is_path = parameter["in"] == "path"
                url = url_of(path, ids | {name: value}) if is_path else f"{url_of(path, ids)}?{name}={value}"
                check(admin.get(url), operation, f"GET {path} {name}={value[:30]}")
                asked += 1
    assert asked > 500


@pytest.mark.slow
def test_forged_bodies_get_an_answer_that_is_described(
    admin: TestClient, document: dict[str, Any], ids: dict[str, str]
) -> None:
    values = itertools.cycle(VALUES)
    asked = 0
    for method, path, operation in operations(document):
        content = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if content is None:
            continue
        body = sample(content["schema"], document["components"]["schemas"])
        names = list(body) if isinstance(body, dict) else []
        changed = [{**body, name: value} for name in names for value in itertools.islice(values, 3)]
        for sent in [next(values), *changed]:
            answer = admin.request(
                method, url_of(path, ids), content=json.dumps(sent), headers={"Content-Type": "application/json"}
            )
            check(answer, operation, f"{method} {path} {json.dumps(sent)[:300]}")
            asked += 1
    assert asked > 400


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"[" * 100_000, "application/json"),
        (b'{"a":' * 50_000, "application/json"),
        (b'{"name": "\xff"}', "application/json"),
        (b"{nope", "application/json"),
        (b"{}", "text/plain"),
        (b"{}", "application/xml"),
        (b"{}", "\x7f"),
        (b"a=b", "application/x-www-form-urlencoded"),
        (b"--x\r\nrubbish", "multipart/form-data; boundary=x"),
        (b"--x\r\nrubbish", "multipart/form-data"),
        (b"\xff\xfe", "application/json; charset=utf-16"),
    ],
    ids=range(11),
)
def test_malformed_bodies_get_an_answer_that_is_described(
    admin: TestClient, document: dict[str, Any], ids: dict[str, str], body: bytes, kind: str
) -> None:
    taking = [found for found in operations(document) if "requestBody" in found[2]]
    refused = 0
    for method, path, operation in taking:
        answer = admin.request(method, url_of(path, ids), content=body, headers={"Content-Type": kind})
        check(answer, operation, f"{method} {path}")
        refused += answer.status_code >= 400
    assert refused > len(taking) // 2


@pytest.mark.slow
def test_strangers_get_an_answer_that_is_described(
    stranger: TestClient, document: dict[str, Any], ids: dict[str, str]
) -> None:
    for method, path, operation in operations(document):
        answer = stranger.request(method, url_of(path, ids))
        assert answer.status_code == 401, path
        check(answer, operation, path)


def test_a_body_that_is_too_large_is_refused_before_it_is_read(admin: TestClient, document: dict[str, Any]) -> None:
    answer = admin.post("/api/v1/environments/validate", content=b" " * (40 * 1024 * 1024))
    assert answer.status_code == 413
    check(answer, document["paths"]["/api/v1/environments/validate"]["post"], "validate")


@pytest.mark.parametrize(
    "headers",
    [
        {"Cookie": b"proctor_session=\xff\xfe; a=\x00; =; ;;"},
        {"Authorization": b"Bearer \xff\xfe"},
        {"Accept": b"\xff" * 300},
        {"Accept-Language": b"x" * 5000},
        {"HX-Current-URL": b"http://[::1"},
        {"HX-Current-URL": b"\xff\xfe//"},
        {"Origin": b"http://[::1"},
        {"Referer": b"http://["},
        {"Range": b"bytes=99999999999999999999-"},
        {"If-Modified-Since": b"Mon, 99 Foo 2001 99:99:99 GMT"},
        {"Last-Event-ID": b"9" * 400},
        {"Host": b"\xff\xfe"},
        {"X-Forwarded-For": b"\xff"},
    ],
    ids=str,
)
def test_odd_headers_break_nothing(admin: TestClient, stranger: TestClient, headers: dict[str, bytes]) -> None:
    for client in (admin, stranger):
        for path in ("/", "/sign-in", "/api/v1/runs", "/static/css/base.css"):
            for extra in ({}, {"HX-Request": "true"}):
                for method in ("GET", "POST"):
                    answer = client.request(method, path, headers={**headers, **extra})
                    assert answer.status_code < 500, f"{path}: {answer.text[:200]}"


def test_a_wrong_method_names_all_that_are_taken(admin: TestClient, ids: dict[str, str]) -> None:
    answer = admin.put(f"/api/v1/runs/{ids['run_id']}")
    assert answer.status_code == 405
    assert {"GET", "DELETE"} <= set(answer.headers["Allow"].split(", "))
    assert answer.json()["error"] == "WrongMethod"
    page = admin.delete("/runs")
    assert page.status_code == 405
    assert "GET" in page.headers["Allow"]


def test_strangers_learn_no_version(stranger: TestClient) -> None:
    from backend.web.templating import product_version

    assert stranger.get("/healthz").json() == {"status": "ok"}
    assert stranger.get("/api/v1/openapi.json").status_code == 401
    for path in ("/sign-in", "/healthz", "/nowhere", "/links/x"):
        answer = stranger.get(path)
        assert "server" not in answer.headers
        assert f"Proctor {product_version()}" not in answer.text
        assert "uvicorn" not in answer.text


# The server itself


@pytest.fixture
def quick_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "HEADER_SECONDS", 0.4)
    monkeypatch.setattr(web_server, "BODY_SECONDS", 0.4)


@contextmanager
def served() -> Iterator[int]:
    """The port of an application that says how much it read."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            size += len(message.get("body", b""))
            more = message.get("more_body", False)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"8")]})
        await send({"type": "http.response.body", "body": b"%08d" % size})

    config = uvicorn.Config(
        app, port=0, log_level="warning", http=BoundedHttp, ws="none", lifespan="off", server_header=False
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join()


def drip(port: int, first: bytes, then: bytes, seconds: float = 4.0) -> tuple[bytes, float]:
    """Send a byte every 50 ms; what came back until the server closed, and when that was."""
    began, answer = time.monotonic(), b""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(first)
        client.settimeout(0.05)
        while time.monotonic() - began < seconds:
            try:
                piece = client.recv(4096)
                if not piece:
                    return answer, time.monotonic() - began
                answer += piece
            except TimeoutError:
                pass
            except ConnectionError:
                return answer, time.monotonic() - began
            try:
                client.sendall(then[:1])
            except OSError:
                return answer, time.monotonic() - began
            then = then[1:] or then
    return answer, seconds


@pytest.mark.usefixtures("quick_limits")
@pytest.mark.parametrize(
    ("first", "then"),
    [
        (b"", b""),
        (b"", b"G"),
        (b"", b"\r\n"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n", b"X-a: b\r\n"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\r\n"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"GET / HTTP/1.1"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n", b"a"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n"),
    ],
    ids=range(8),
)
def test_a_request_that_does_not_end_is_cut_off(first: bytes, then: bytes) -> None:
    with served() as port:
        _, seconds = drip(port, first, then)
        assert seconds < 3.0
        assert drip(port, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"")[0].endswith(b"00000000")


@pytest.mark.usefixtures("quick_limits")
def test_a_slow_upload_that_continues_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "BODY_BYTES", 1000)
    body = b"x" * 40_000
    with served() as port, socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 40000\r\nConnection: close\r\n\r\n")
        for start in range(0, len(body), 2000):
            client.sendall(body[start : start + 2000])
            time.sleep(0.08)
        answer = b""
        while piece := client.recv(4096):
            answer += piece
    assert answer.endswith(b"00040000")
    assert b"uvicorn" not in answer.lower()


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 200_000,
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 40_000 + b"\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=range(3),
)
def test_headers_without_end_are_refused(head: bytes) -> None:
    with served() as port, socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(5)
        answer = b""
        try:
            client.sendall(head)
            while piece := client.recv(4096):
                answer += piece
        except ConnectionError:  # closed while the rest was being sent
            pass
        assert not answer or answer.startswith(b"HTTP/1.1 431"), answer[:100]


def test_an_announced_body_that_is_too_large_is_refused_at_once(admin: TestClient) -> None:
    answer = admin.post("/api/v1/environments/validate", content=iter([b"{}"]), headers={"Content-Length": str(10**12)})
    assert answer.status_code == 413
