"""Without script, a refused form comes back with its entries and a message next to each field."""

from collections import defaultdict
from html.parser import HTMLParser

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.team.auth import first_admin_link
from backend.web.refill import fill
from tests.web_fixtures import make_person

HOSTILE = "\n\"'></textarea></option><script>alert(1)</script>&amp;<b>\u2028 ü"


class Page(HTMLParser):
    """The visible state: values by name, messages by field, scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.values: defaultdict[str, list[str]] = defaultdict(list)
        self.messages: dict[str, str] = {}
        self.tags: list[str] = []
        self._text, self._name, self._slot, self._select = "", "", "", ""
        self._is_selected = False
        self.alerts: list[str] = []
        self._is_alert = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        self._text = ""
        name = given.get("name") or ""
        if tag == "input" and (given.get("type") not in {"checkbox", "radio"} or "checked" in given):
            self.values[name].append(given.get("value") or "")
        if tag == "textarea":
            self._name = name
        if tag == "select":
            self._select = name
        if tag == "option" and "selected" in given:
            self._is_selected = True
            self._option = given.get("value")
        self._slot = given.get("data-error-for") or ""
        self._is_alert = self._is_alert or given.get("role") == "alert"

    def handle_data(self, data: str) -> None:
        self._text += data
        if self._is_alert and data.strip():
            self.alerts.append(data.strip())

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self.values[self._name].append(self._text.removeprefix("\n"))
        if tag == "option" and self._is_selected:
            self.values[self._select].append(self._text.strip() if self._option is None else self._option)
            self._is_selected = False
        if self._slot and self._text.strip():
            self.messages[self._slot] = self._text.strip()
        if tag == "div":
            self._is_alert = False


def _post(client: TestClient, url: str, referer: str, **data: str) -> httpx.Response:
    return client.post(url, data=data, headers={"Referer": f"http://testserver{referer}"})


def test_a_short_password_keeps_the_name_that_was_typed(session: Session, stranger: TestClient) -> None:
    link = first_admin_link(session)
    assert link
    path = "/links/" + link.rsplit("/", 1)[1]
    for _ in range(2):  # the refused page is sent again from the address that it was posted to
        response = _post(stranger, path, path, name="Ada Lovelace", password="short one")
        assert response.status_code == 422
        page = Page(response.text)
        assert page.values["name"] == ["Ada Lovelace"]
        assert page.values["password"] == [""]
        assert page.messages == {"password": "At least 12 characters; a short sentence is good."}
        assert "short one" not in response.text
    assert _post(stranger, path, path, name="Ada Lovelace", password="a longer sentence").status_code == 303


def test_an_invitation_that_is_refused_keeps_everything(admin: TestClient, session: Session) -> None:
    make_person(session, Role.VIEWER, "taken@example.org")
    data = {"name": "Rae", "email": "taken@example.org", "role": "trainer"}
    page = Page(_post(admin, "/team", "/team", **data).text)
    assert page.messages == {"email": "A member has this address already."}
    assert page.values["email"] == ["taken@example.org"]
    assert page.values["role"][-1] == "trainer"
    assert page.alerts


def test_a_form_is_found_again_after_a_second_refusal(viewer: TestClient) -> None:
    """Then the browser names the address that was posted to, where there is no page."""
    for referer in ("/me", "/me/password"):
        response = _post(
            viewer, "/me/password", referer, current="wrong", password="whatever is new", keep_tokens="true"
        )
        assert response.status_code == 422
        page = Page(response.text)
        assert page.messages == {"current": "This is not your current password."}
        assert page.values["keep_tokens"] == ["true"]
        assert "whatever is new" not in response.text


def test_the_csrf_token_of_the_page_is_not_replaced_by_what_was_sent(admin: TestClient) -> None:
    response = _post(admin, "/team", "/team", csrf_token="old", name="", email="x")
    assert "old" not in Page(response.text).values["csrf_token"]


def test_another_sites_page_is_never_drawn(admin: TestClient) -> None:
    headers = {"Referer": "https://evil.example/me"}
    response = admin.post("/me/password", data={"current": "wrong", "password": "x"}, headers=headers)
    assert response.status_code == 422
    assert "This is not your current password." in response.text


def test_with_script_only_the_messages_are_sent(admin: TestClient) -> None:
    headers = {"HX-Request": "true", "HX-Request-Type": "partial", "Referer": "http://testserver/team"}
    response = admin.post("/team", data={"name": "Rae", "email": "nonsense"}, headers=headers)
    assert response.status_code == 422
    assert "<html" not in response.text
    assert response.headers["hx-reswap"] == "none"


def test_hostile_text_comes_back_as_text(app: FastAPI, admin: TestClient) -> None:
    response = _post(admin, "/team", "/team", name=HOSTILE, email=HOSTILE)
    assert response.status_code == 422
    assert Page(response.text).values["name"][-1] == HOSTILE
    assert "<script>alert" not in response.text


@pytest.mark.parametrize("text", [HOSTILE, "plain", "", "two\nlines\n"])
def test_every_kind_of_control_is_filled_and_the_rest_of_the_page_stays(text: str) -> None:
    html = (
        '<!doctype html><p>&lt;before&nbsp;&#33;<!-- note --></p><form method="post" action="/other">'
        '<input name="a" value="other"></form><form method="post" action="/here?x=1" id="f">'
        '<input name="a" value="1"><input name="a" value="2"><textarea name="b">old &amp; gone</textarea>'
        '<select name="c"><option value="x" selected>X</option><option value="y">Y</option></select>'
        "<select name='d'><option selected>one</option><option>two</option></select>"
        '<input type="checkbox" name="e" value="1" checked><input type="checkbox" name="e" value="2">'
        '<input type="radio" name="g" value="1" checked><input type="radio" name="g" value="2">'
        '<input type="hidden" name="h" value="page"><input type="password" name="p">'
        '<p data-error-for="a"></p><p data-error-for="b"></p></form><p>after &copy;</p>'
    )
    sent = {"a": ["first", text], "b": [text], "c": ["y"], "d": ["two"], "e": ["2"], "g": ["2"], "h": ["x"], "p": ["x"]}
    filled = fill(html, "/here", sent, "Look <again>.", {"a": "Bad <a>.", "elsewhere": "Bad too."})
    assert filled
    page = Page(filled)
    assert page.values["a"] == ["other", "first", text]
    assert page.values["b"] == [text]
    assert [page.values[name] for name in "cdeghp"] == [["y"], ["two"], ["2"], ["2"], ["page"], [""]]
    assert page.messages == {"a": "Bad <a>."}
    assert page.alerts == ["Look <again>.", "Bad too."]
    assert "script" not in page.tags
    assert filled.startswith("<!doctype html><p>&lt;before&nbsp;&#33;<!-- note --></p>")
    assert filled.endswith("</form><p>after &copy;</p>")
    assert fill(html, "/nowhere", sent, "", {}) is None
