"""Bodies that no form would send, to every route that changes something: refused with a message, or accepted safely."""

import json
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute, iter_route_contexts
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.web.routing import guarded_routes
from tests import factories
from tests.environments.packages import make_files
from tests.proof.conftest import address

pytestmark = pytest.mark.slow

FORM = {"Content-Type": "application/x-www-form-urlencoded"}
TEXTS = {
    "NUL": "a\x00b",
    "half a character": "a\ud800b",
    "long": "x" * 100_000,
    "other direction": "a\u202eb\u2066c",
    "controls": "a\x1b[31m\x07\x7f\x85\u2028b",
    "script": "<script>alert(1)</script>",
    "template": "{{ 7 * 7 }}{% raw %}",
    "a number": "9" * 30,
    "nothing": "",
}
RAW = {
    "no JSON": b"{nope",
    "nothing": b"",
    "a list": b"[]",
    "null": b"null",
    "not a number": b'{"tasks": NaN, "temperature": Infinity}',
    "deep": b'{"files":' * 3000 + b"1" + b"}" * 3000,
    "deep list": b"[" * 100_000,
    "not UTF-8": b'{"name": "\xff\xfe"}',
    "huge number": b'{"tasks": 1' + b"0" * 5000 + b', "revision": 1' + b"0" * 400 + b"}",
}
EVERYWHERE = {"NUL", "half a character", "nothing", "null"}
"""What Postgres and models refuse. Of the others each route gets every second one, and its neighbor the rest."""
OF_FORMS = {"no JSON", "deep list", "not UTF-8"}
"""Only forms get these here: in `tests/security/test_requests.py` the JSON API does, and multipart that is none."""


@pytest.fixture
def ids(session: Session) -> dict[str, object]:
    """Something real behind every id, so that the body is read."""
    version = factories.make_environment_version(session)
    run = factories.make_run(session, version)
    [rollout] = factories.make_rollouts(session, run, [[1, 1, 0]])
    flag = factories.make_flag(session, run, rollout)
    checkpoint = factories.make_checkpoint(session, factories.make_policy(session), run)
    return {
        "run_id": run.id,
        "rollout_id": rollout.id,
        "flag_id": flag.id,
        "policy_id": run.policy_id,
        "version_id": version.id,
        "checkpoint_id": checkpoint.id,
        "person_id": factories.make_person(session).id,
        "name": version.environment.name,
        "number": 1,
        "runs": run.id,
        "rollouts": rollout.id,
        "flags": flag.id,
        "policies": run.policy_id,
        "environments": version.environment.name,
        "checkpoints": checkpoint.id,
    }


def changes(app: FastAPI, ids: dict[str, object]) -> Iterator[tuple[str, str]]:
    for method, path in sorted((m, path) for path, methods, _ in guarded_routes(app) for m in methods):
        if method not in {"GET", "HEAD"} and path not in {"/sign-out", "/me/password"}:
            yield method, address(path, ids)


def in_turn(app: FastAPI, ids: dict[str, object], what: str) -> Iterator[tuple[str, str]]:
    """The changes that this text or body is tried on."""
    turn = [*TEXTS, *RAW].index(what)
    for number, change in enumerate(changes(app, ids)):
        if what in EVERYWHERE or (number + turn) % 2 == 0:
            yield change


def takers_of_files(app: FastAPI, ids: dict[str, object]) -> set[str]:
    """The addresses whose body may hold the files of a package."""
    return {
        address(each.path or "", ids)
        for each in iter_route_contexts(app.routes)
        if isinstance(each.original_route, APIRoute)
        for field in each.dependant.body_params
        if "files" in getattr(field.field_info.annotation, "model_fields", {})
    }


@pytest.mark.parametrize("what", TEXTS)
def test_texts(app: FastAPI, admin: TestClient, ids: dict[str, object], what: str) -> None:
    text = TEXTS[what]
    names = "email comment notes reply key without_certificate description template constant path to script base file"
    body = {
        **dict.fromkeys(names.split(), text),
        **{name: str(value) for name, value in ids.items()},
        "name": text,
        "kind": "scripted",
        "script": "random",
        "role": "viewer",
        "verdict": "hack",
        "tasks": 1,
        "revision": 1,
        "text": text,
        "configuration": {"sft": {"script": text}},
    }
    taking = takers_of_files(app, ids)
    assert len(taking) >= 3
    packages = ({**make_files(), "README.md": text}, {text: "x"})
    plain, *packed = (json.dumps({**body, **more}) for more in ({}, *({"files": files} for files in packages)))
    form = urlencode({name: str(value).encode("utf-8", "surrogatepass") for name, value in body.items()})
    for method, url in in_turn(app, ids, what):
        if url.startswith("/api/"):
            for sent in (plain, *packed) if url in taking else (plain,):
                answer = admin.request(method, url, content=sent, headers={"Content-Type": "application/json"})
                assert answer.status_code < 500, f"{method} {url}: {answer.text[:300]}"
        else:
            answer = admin.request(method, url, content=form, headers=FORM)
            assert answer.status_code < 500, f"{method} {url}: {answer.text[:300]}"
            assert "<script>alert" not in answer.text, url


@pytest.mark.parametrize("what", RAW)
def test_bodies(app: FastAPI, admin: TestClient, ids: dict[str, object], what: str) -> None:
    for method, url in in_turn(app, ids, what):
        if what in OF_FORMS and url.startswith("/api/"):
            continue
        kind = "application/json" if url.startswith("/api/") else "application/x-www-form-urlencoded"
        answer = admin.request(method, url, content=RAW[what], headers={"Content-Type": kind})
        assert answer.status_code < 500, f"{method} {url}: {answer.text[:300]}"


def test_multipart_that_is_none(app: FastAPI, admin: TestClient, ids: dict[str, object]) -> None:
    for method, url in changes(app, ids):
        for kind in () if url.startswith("/api/") else ("multipart/form-data", "multipart/form-data; boundary=x"):
            answer = admin.request(method, url, content=b"--x\r\nrubbish", headers={"Content-Type": kind})
            assert answer.status_code < 500, f"{method} {url}: {answer.text[:300]}"
