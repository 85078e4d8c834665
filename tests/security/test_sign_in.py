"""Guessing is limited per account, address and device, atomically; the owner is never locked out by strangers."""

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Literal

import httpx
import pytest
from argon2 import PasswordHasher
from sqlalchemy import func, select, update

from backend.core.session import transaction
from backend.domain.vocabulary import Role
from backend.team import passwords
from backend.team.passwords import is_right
from backend.team.tables import AttemptLimit, AuditEvent, Person, SignInLink
from backend.web.identity import hash_secret
from tests.security.visitors import NEW_PASSWORD, PASSWORD, Visitor, make_member

OFFICE, HOME, STRANGER = "198.51.100.7", "198.51.100.8", "203.0.113.9"
"""Addresses for documentation. The test server trusts X-Forwarded-For from this machine, as behind a proxy."""


def _guess(
    served: str, email: str, password: str, address: str, cookies: httpx.Cookies | None = None
) -> httpx.Response:
    with httpx.Client(
        base_url=served, headers={"X-Forwarded-For": address}, cookies=cookies, timeout=60, verify=False
    ) as client:
        return client.post("/sign-in", data={"email": email, "password": password})


def _at_once(calls: Sequence[Callable[[], httpx.Response]]) -> list[httpx.Response]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def _actions() -> Counter[str]:
    with transaction() as session:
        return Counter(session.scalars(select(AuditEvent.action)))


@pytest.mark.slow
def test_parallel_guesses_are_limited_like_others(served: str) -> None:
    make_member(Role.ADMIN, "ada")
    email = "ada@example.org"
    calls = [lambda n=n: _guess(served, email, f"wrong guess {n}", STRANGER) for n in range(60)]
    statuses = Counter(response.status_code for response in _at_once(calls))
    assert statuses == {422: 5, 429: 55}
    assert _guess(served, email, PASSWORD, STRANGER).status_code == 429
    assert _guess(served, email, PASSWORD, OFFICE).status_code == 303


@pytest.mark.slow
def test_guessing_many_accounts_from_one_address_is_limited(served: str) -> None:
    calls = [lambda n=n: _guess(served, f"somebody{n}@example.org", "guess", STRANGER) for n in range(40)]
    responses = [response for first in range(0, 40, 10) for response in _at_once(calls[first : first + 10])]
    assert Counter(response.status_code for response in responses) == {422: 30, 429: 10}
    assert _guess(served, "somebody1@example.org", "guess", OFFICE).status_code == 422


def test_addresses_of_one_ipv6_network_share_a_limit(served: str) -> None:
    make_member(Role.ADMIN, "ada")
    guesses = [_guess(served, "ada@example.org", "wrong", f"2001:db8:1:2::{n}").status_code for n in range(6)]
    assert guesses == [422] * 5 + [429]
    assert _guess(served, "ada@example.org", PASSWORD, "2001:db8:1:3::1").status_code == 303


@pytest.mark.slow
def test_strangers_everywhere_cannot_lock_the_owner_out(served: str) -> None:
    """A browser that signed in before has a separate limit."""
    make_member(Role.ADMIN, "ada")
    with Visitor(served, **{"X-Forwarded-For": HOME}) as owner, Visitor(served) as elsewhere:
        assert owner.sign_in("ada").status_code == 303
        owner.client.post("/sign-out")
        guesses = Counter(
            _guess(served, "ada@example.org", "wrong", f"203.0.113.{n % 20}").status_code for n in range(55)
        )
        assert guesses[422] == 50
        assert _guess(served, "ada@example.org", PASSWORD, OFFICE).status_code == 429, "an unknown browser waits"
        assert owner.sign_in("ada").status_code == 303
        make_member(Role.VIEWER, "bob")
        assert elsewhere.sign_in("bob").status_code == 303, "other accounts are not concerned"


def test_the_cookie_of_a_known_browser_helps_no_one_else(served: str) -> None:
    make_member(Role.ADMIN, "ada")
    make_member(Role.VIEWER, "eve")
    with Visitor(served, **{"X-Forwarded-For": STRANGER}) as eve:
        assert eve.sign_in("eve").status_code == 303
        cookies = eve.client.cookies
        statuses = Counter(_guess(served, "ada@example.org", "wrong", STRANGER, cookies).status_code for _ in range(8))
    assert statuses == {422: 5, 429: 3}


@pytest.mark.slow
def test_a_known_browser_is_limited_too(served: str) -> None:
    make_member(Role.ADMIN, "ada")
    with Visitor(served) as owner:
        owner.sign_in("ada")
        owner.client.post("/sign-out")
        calls = [lambda: owner.sign_in("ada", "wrong password")] * 30
        assert Counter(response.status_code for response in _at_once(calls)) == {422: 10, 429: 20}


def test_unknown_and_disabled_accounts_are_limited_like_others(served: str) -> None:
    """Otherwise the limit would reveal which accounts exist."""
    make_member(Role.VIEWER, "mia")
    with transaction() as session:
        session.execute(update(Person).values(disabled_at=func.now()))
    for email in ("mia@example.org", "unknown@example.org"):
        responses = [_guess(served, email, PASSWORD, STRANGER) for _ in range(6)]
        assert [response.status_code for response in responses] == [422] * 5 + [429]


def test_too_many_attempts_say_when_to_try_again_and_keep_what_was_typed(served: str) -> None:
    make_member(Role.ADMIN, "ada")
    for _ in range(5):
        _guess(served, "ada@example.org", "wrong", STRANGER)
    response = _guess(served, "ada@example.org", "wrong", STRANGER)
    assert response.status_code == 429
    assert 0 < int(response.headers["retry-after"]) <= 300
    assert re.search(r"Try again in \d+ minutes?\.", response.text)
    assert 'value="ada@example.org"' in response.text
    assert "wrong" not in re.findall(r'value="([^"]*)"', response.text)


def test_a_limit_ends_with_its_window(served: str) -> None:
    make_member(Role.ADMIN, "ada")
    for _ in range(6):
        _guess(served, "ada@example.org", "wrong", STRANGER)
    with transaction() as session:
        session.execute(update(AttemptLimit).values(resets_at=datetime.now(UTC) - timedelta(seconds=1)))
    assert _guess(served, "ada@example.org", PASSWORD, STRANGER).status_code == 303


@pytest.mark.slow
def test_right_passwords_use_no_limit_up(served: str) -> None:
    """A whole office may sign in from one address."""
    make_member(Role.ADMIN, "ada")
    for _ in range(32):
        assert _guess(served, "ada@example.org", PASSWORD, OFFICE).status_code == 303


def test_failures_and_lockouts_are_audited_without_flooding_the_log(served: str) -> None:
    ada = make_member(Role.ADMIN, "ada")
    _guess(served, "ada@example.org", PASSWORD, OFFICE)
    for n in range(18):
        _guess(served, "ada@example.org", "wrong", STRANGER)
        _guess(served, f"unknown{n}@example.org", "hunter2 typed into the wrong field", STRANGER)
    actions = _actions()
    assert actions["person.sign_in"] == 1
    assert actions["person.sign_in_failed"] == 1
    assert actions["person.sign_in_blocked"] == 1
    assert sum(actions.values()) <= 6, actions
    with transaction() as session:
        failed = session.scalars(select(AuditEvent).where(AuditEvent.action == "person.sign_in_failed")).one()
        assert (failed.subject_id, failed.detail["address"]) == (str(ada.id), STRANGER)
        assert "unknown" not in str([event.detail for event in session.scalars(select(AuditEvent))])


def test_guesses_of_the_present_password_are_limited(served: str) -> None:
    """A stranger at an unlocked computer; other sessions of the member are not affected."""
    make_member(Role.ADMIN, "ada")
    with Visitor(served) as thief, Visitor(served) as owner:
        thief.sign_in("ada")
        owner.sign_in("ada")

        def change(visitor: Visitor, current: str) -> httpx.Response:
            return visitor.client.post("/me/password", data={"current": current, "password": NEW_PASSWORD})

        statuses = Counter(r.status_code for r in _at_once([lambda: change(thief, "wrong")] * 20))
        assert statuses == {422: 5, 429: 15}
        assert change(thief, PASSWORD).status_code == 429
        assert _actions()["person.change_password_failed"] == 1
        assert change(owner, PASSWORD).status_code == 303


def test_of_two_parallel_uses_of_a_link_one_wins(served: str) -> None:
    make_member(Role.ADMIN, "ada")
    mia = make_member(Role.VIEWER, "mia")
    with Visitor(served) as admin:
        admin.sign_in("ada")
        path = re.findall(r"/links/[\w-]+", admin.client.post(f"/team/{mia.id}/link").text)[0]
    calls = [
        lambda n=n: httpx.post(
            served + path, data={"name": f"Mia {n}", "password": f"{NEW_PASSWORD} {n}"}, timeout=30, verify=False
        )
        for n in range(8)
    ]
    statuses = [response.status_code for response in _at_once(calls)]
    assert sorted(statuses) == [303] + [404] * 7
    winner = statuses.index(303)
    with transaction() as session:
        person = session.get_one(Person, mia.id)
        assert person.name == f"Mia {winner}"
        assert is_right(f"{NEW_PASSWORD} {winner}", person.password_hash)
        link = session.scalars(select(SignInLink)).one()
        assert link.token_hash == hash_secret(path.rsplit("/", 1)[1])


class SlowHasher(PasswordHasher):
    """As on a machine where hashing takes two seconds, without its load on the other tests."""

    def verify(self, hash: str | bytes, password: str | bytes) -> Literal[True]:
        time.sleep(2)
        return super().verify(hash, password)


@pytest.mark.slow
def test_a_flood_of_sign_ins_does_not_stop_the_rest_of_the_web(served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt holds memory and a thread: only a few wait, the others are sent away at once."""
    make_member(Role.ADMIN, "ada")
    with Visitor(served) as admin:
        admin.sign_in("ada")
        monkeypatch.setattr(passwords, "hasher", SlowHasher(time_cost=1, memory_cost=64, parallelism=1))
        with ThreadPoolExecutor(60) as pool:
            guesses = [
                pool.submit(_guess, served, f"nobody{n}@example.org", "wrong", f"198.51.{n}.1") for n in range(60)
            ]
            time.sleep(1)
            assert admin.is_signed_in()
            assert not all(guess.done() for guess in guesses)
            evaluated = sum(guess.done() and guess.result().status_code == 422 for guess in guesses)
            assert evaluated <= 16, "the page waited for the flood"
            statuses = Counter(guess.result().status_code for guess in guesses)
    assert statuses[422] >= 16
    assert set(statuses) == {422, 429}
