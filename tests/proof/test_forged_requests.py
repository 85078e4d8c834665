"""A stranger, or a member with a lie: every route answers with a refusal that says so, and never with an accident.

Who asks is found out in one place for all routes: each of them is tried with one lie, and a few of them with all.
"""

import inspect
import re
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute, RouteContext, iter_route_contexts
from fastapi.testclient import TestClient
from httpx import Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.team.tables import ApiToken, Person, WebSession
from backend.web.identity import SESSION_COOKIE, hash_secret, new_secret
from backend.web.routing import PUBLIC, guarded_routes
from tests import factories
from tests.proof.conftest import address
from tests.web_fixtures import browser

pytestmark = pytest.mark.slow

FORGED_IDS = {
    "another id": str(uuid.uuid4()),
    "nil": str(uuid.UUID(int=0)),
    "number": "1",
    "huge number": "9" * 40,
    "negative": "-1",
    "words": "no-such-thing",
    "script": "<script>alert(1)</script>",
    "NUL": "a%00b",
    "half a character": "%ED%A0%80",
    "dots": "..%2F..%2Fetc%2Fpasswd",
    "quote": "'; DROP TABLE runs; --",
    "very long": "x" * 5000,
}
QUERIES = (
    "text=%00",
    "text=%ED%A0%80",
    "text=%25&sort=;drop",
    "after=rubbish",
    "after=WzEsMl0",  # [1,2]
    "after=W3sidCI6IjIwMjAtMDEtMDEifSwieCJd",  # [{"t":"2020-01-01"},"x"]
    "after=W251bGxd",  # [null]
    "after=WyIAIl0",
    "limit=-1",
    "limit=999999999999",
    "step=99999999999999999999&level=-5&phase=train",
    "sort=%00&column=%00&min_column=nan",
    "min_reward=nan&max_reward=inf",
    "column=<script>&min_column=1",
    "run_id=x&a=1&b=2&from=x&to=y&version_id=z&policy_id=%00",
    "chart=%00&after=99999999999999999999&low=1e9&high=x&name=%00",
    "kind=rubbish&status=rubbish&environment=%00&file=%00&again=x",
)
EVERYWHERE = QUERIES[:1]
"""Links to other pages repeat the query; the others are tried where one of their names is read."""
READ_AS_IDS = ("another id", "words")
"""All that is tried where nothing but an id is read: whatever is none ends alike."""
DOORS = {("GET", "/runs"), ("GET", "/runs/{run_id}"), ("GET", "/api/v1/runs"), ("POST", "/api/v1/evaluations")}
"""A page, one of something, JSON, and what changes something."""
GONE = {400, 401, 403, 404, 405, 409, 422}


def routes(app: FastAPI) -> Iterator[tuple[str, str]]:
    for path, methods, _ in guarded_routes(app):
        for method in sorted(methods - {"HEAD"}):
            yield method, path


def closed(app: FastAPI, *, few: bool) -> Iterator[tuple[str, str]]:
    """All routes that are not public, or only the given ones, with an id that does not exist."""
    found = [route for route in routes(app) if route[1] not in PUBLIC and (route in DOORS or not few)]
    assert len(found) >= len(DOORS)
    for method, path in found:
        yield method, re.sub(r"\{[^}]+\}", str(uuid.uuid4()), path)


def contexts(app: FastAPI) -> Iterator[RouteContext]:
    return (each for each in iter_route_contexts(app.routes) if isinstance(each.original_route, APIRoute))


def paths_of_ids(app: FastAPI) -> set[str]:
    """The paths whose every parameter is an id."""
    read = {
        each.path or "": [field.field_info.annotation for field in each.dependant.path_params] for each in contexts(app)
    }
    return {path for path, kinds in read.items() if set(kinds) == {uuid.UUID}}


def readers(app: FastAPI, query: str) -> set[str]:
    """The paths that read what this query says; for one that is tried everywhere, all that read any."""
    said = {part.partition("=")[0] for part in query.split("&")}
    reading = {each.path or "": _read(each.dependant) for each in contexts(app)}
    assert sum(names is None or bool(names) for names in reading.values()) > 100
    return {
        path
        for path, names in reading.items()
        if names is None or (names and (query in EVERYWHERE or not names.isdisjoint(said)))
    }


def _read(dependant: Dependant) -> set[str] | None:
    """The names of the parameters; None: the whole request. The dependencies that all routes have read neither."""
    if dependant.request_param_name and _looks_into_queries(inspect.getfile(inspect.unwrap(dependant.call))):
        return None
    names: set[str] = set()
    for field in [*dependant.query_params, *(field for each in dependant.dependencies for field in each.query_params)]:
        fields = getattr(field.field_info.annotation, "model_fields", None)
        names |= {field.alias} if fields is None else {each.alias or name for name, each in fields.items()}
    return names


@cache
def _looks_into_queries(file: str) -> bool:
    """Whether something in the folder of this module takes what it needs out of a whole request.

    Pages have the request for their templates, and read declared parameters.
    """
    return any("query_params" in module.read_text() for module in Path(file).parent.glob("*.py"))


def is_nothing(answer: Response) -> bool:
    """Refused; or an old address that leads to another one here; or a live stream that ends at once."""
    if answer.status_code == 301:
        return re.match(r"/(?![/\\])", answer.headers["location"]) is not None
    return answer.status_code in GONE or re.findall(r"^event: (\w+)", answer.text, re.MULTILINE) == ["end"]


@pytest.mark.parametrize("what", FORGED_IDS)
def test_a_forged_id_is_simply_nothing(app: FastAPI, admin: TestClient, what: str) -> None:
    asked = [(method, path) for method, path in routes(app) if "{" in path]
    if what not in READ_AS_IDS:  # the routes that read a name take turns: each gets every third of these lies
        passed_over, turn = paths_of_ids(app), list(FORGED_IDS).index(what)
        asked = [route for route in asked if route[1] not in passed_over]
        asked = [route for number, route in enumerate(asked) if (number + turn) % 3 == 0]
    assert len(asked) > 60
    for method, path in asked:
        if path.startswith("/links/") and method == "GET":
            continue  # the page of a link that is not valid says so
        answer = admin.request(method, re.sub(r"\{[^}]+\}", FORGED_IDS[what], path))
        assert is_nothing(answer), f"{method} {path}: {answer.status_code}"
        assert "<script>alert" not in answer.text, path


def test_the_id_of_another_kind_is_nothing(app: FastAPI, admin: TestClient, session: Session) -> None:
    run = factories.make_run(session)
    [rollout] = factories.make_rollouts(session, run, [[1, 1, 0]])
    flag = factories.make_flag(session, run, rollout)
    kinds = {"run_id": run.id, "rollout_id": rollout.id, "flag_id": flag.id, "policy_id": run.policy_id}
    for method, path in routes(app):
        for own, other in ((own, other) for own in kinds for other in kinds if own != other and f"{{{own}}}" in path):
            url = re.sub(r"\{name\}", "x", path.replace(f"{{{own}}}", str(kinds[other])))
            assert is_nothing(admin.request(method, url)), f"{method} {path} with a {other}"


@pytest.mark.parametrize("query", QUERIES)
def test_a_forged_query_is_refused_or_ignored(app: FastAPI, admin: TestClient, session: Session, query: str) -> None:
    run = factories.make_run(session)
    [rollout] = factories.make_rollouts(session, run, [[1, 1, 0]])
    flag = factories.make_flag(session, run, rollout)
    name = factories.make_environment_version(session).environment.name
    ids: dict[str, object] = {
        "run_id": run.id,
        "rollout_id": rollout.id,
        "flag_id": flag.id,
        "policy_id": run.policy_id,
    }
    ids |= {"name": name, "number": 1, "secret": "x", "runs": run.id, "rollouts": rollout.id, "environments": name}
    reading = readers(app, query)
    assert len(reading) > 3
    for method, path in routes(app):
        if method != "GET" or path not in reading or path.endswith("/events"):
            continue
        answer = admin.get(f"{address(path, ids)}?{query}", follow_redirects=False)
        assert answer.status_code in {200, 204, 301, 303, 400, 404, 409, 422}, f"{path}?{query}: {answer.status_code}"


@pytest.mark.parametrize("how", ["expired", "revoked", "of somebody disabled", "made up", "empty", "not a token"])
def test_a_token_that_does_not_hold_opens_nothing(app: FastAPI, session: Session, how: str) -> None:
    ada = factories.make_person(session)
    if how == "of somebody disabled":
        ada.disabled_at = datetime.now(UTC)
    secret = f"pt_{new_secret()}"
    yesterday = datetime.now(UTC) - timedelta(days=1)
    session.add(
        ApiToken(
            person_id=ada.id,
            name="t",
            prefix="pt_",
            token_hash=hash_secret(secret),
            role=Role.ADMIN,
            expires_at=yesterday if how == "expired" else None,
            revoked_at=yesterday if how == "revoked" else None,
        )
    )
    session.flush()
    sent = {"made up": "pt_x", "empty": "", "not a token": "\x7f" * 100}.get(how, secret)
    client = browser(app, Authorization=f"Bearer {sent}")
    for method, url in closed(app, few=how != "revoked"):
        answer = client.request(method, url)
        is_shown_the_door = answer.status_code == 303 and answer.headers["location"].startswith("/sign-in")
        assert answer.status_code == 401 or is_shown_the_door, f"{method} {url}: {answer.status_code}"


@pytest.mark.parametrize("how", ["expired", "of somebody disabled", "made up"])
def test_a_cookie_that_does_not_hold_opens_nothing(app: FastAPI, session: Session, how: str) -> None:
    ada = factories.make_person(session)
    secret, now = new_secret(), datetime.now(UTC)
    if how == "of somebody disabled":
        ada.disabled_at = now
    expires_at = now + timedelta(days=-1 if how == "expired" else 1)
    session.add(WebSession(person_id=ada.id, token_hash=hash_secret(secret), csrf_token="c", expires_at=expires_at))
    session.flush()
    client = browser(app, **{"X-CSRF-Token": "c"})
    client.cookies.set(SESSION_COOKIE, new_secret() if how == "made up" else secret)
    for method, url in closed(app, few=how != "expired"):
        answer = client.request(method, url)
        assert answer.status_code in {303, 401}, f"{method} {url}: {answer.status_code}"


@pytest.mark.parametrize("token", ["", "wrong", "\xff" * 40])
def test_no_change_by_cookie_without_the_csrf_token(
    app: FastAPI, admin: TestClient, session: Session, token: str
) -> None:
    people = session.scalars(select(Person)).all()
    for method, url in closed(app, few=token != "wrong"):
        if method != "GET":
            answer = admin.request(method, url, headers={"X-CSRF-Token": token.encode("latin-1")})
            assert answer.status_code == 403, f"{method} {url}: {answer.status_code}"
    assert session.scalars(select(Person)).all() == people


def test_another_sites_page_changes_nothing_even_with_the_token(app: FastAPI, admin: TestClient) -> None:
    for method, path in routes(app):
        if method != "GET":
            url = re.sub(r"\{[^}]+\}", str(uuid.uuid4()), path)
            for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
                assert admin.request(method, url, headers=headers).status_code == 403, f"{method} {path}"
