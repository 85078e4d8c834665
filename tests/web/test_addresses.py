"""Every address of a page can be opened: reloading a form's answer never ends in "Method Not Allowed"."""

import re
import uuid

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from backend.web.routing import guarded_routes, nearest_page


def test_every_address_that_takes_forms_leads_to_a_page(app: FastAPI, admin: TestClient) -> None:
    methods: dict[str, set[str]] = {}
    for path, allowed, _ in guarded_routes(app):
        methods.setdefault(path, set()).update(allowed)
    pages = {path for path, allowed in methods.items() if "GET" in allowed}
    shapes = {re.sub(r"{\w+}", "{}", path) for path in pages}  # a form may name the parts of a page's address otherwise
    forms = {path for path in methods.keys() - pages if not path.startswith("/api/")}
    forms = {path for path in forms if re.sub(r"{\w+}", "{}", path) not in shapes}
    assert len(forms) > 50

    for path in forms:
        place = nearest_page(path, pages)
        assert place.partition("?")[0] in pages, path
        known = {name: str(uuid.uuid4()) for name in re.findall(r"{(\w+)}", path)}
        answer = admin.get(path.format(**known))
        assert answer.status_code == 303, (path, answer.status_code)
        assert answer.headers["location"] == place.format(**known)


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("/evaluations", "/runs?kind=evaluation"),
        ("/training/preflights", "/training/new"),
        ("/compare/baselines", "/compare"),
    ],
)
def test_lists_are_found_by_their_natural_address(address: str, place: str, admin: TestClient) -> None:
    answer = admin.get(address)

    assert (answer.status_code, answer.headers["location"]) == (303, place)
    assert admin.get(place).status_code == 200


def test_other_methods_and_the_json_api_still_refuse(admin: TestClient) -> None:
    assert admin.put("/training", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 405
    assert admin.delete("/api/v1/openapi.json", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 405


def test_a_stranger_is_sent_to_sign_in_from_there(stranger: TestClient) -> None:
    assert stranger.get("/evaluations").headers["location"] == "/runs?kind=evaluation"
    assert stranger.get("/runs?kind=evaluation").headers["location"].startswith("/sign-in")
