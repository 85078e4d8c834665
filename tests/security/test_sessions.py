"""A revoked session or token ends within two seconds: its streams, its downloads and everything created with it."""

import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from sqlalchemy import select

from backend.core import artifacts
from backend.core.session import transaction
from backend.domain.vocabulary import Role
from backend.settings import get_settings
from backend.team.service import issue_local_token
from backend.team.tables import ApiToken, WebSession
from backend.training.tables import ExampleFile
from backend.web.identity import SESSION_COOKIE
from tests.security.visitors import NEW_PASSWORD, NOTICED_WITHIN_SECONDS, PASSWORD, Visitor, make_member

Revoke = Callable[[Visitor, Visitor, str], httpx.Response]


def _disable(admin: Visitor, member: Visitor, person_id: str) -> httpx.Response:
    return admin.client.post(f"/team/{person_id}/disable")


def _disable_by_api(admin: Visitor, member: Visitor, person_id: str) -> httpx.Response:
    return admin.client.patch(f"/api/v1/members/{person_id}", json={"disabled": True})


def _sign_out(admin: Visitor, member: Visitor, person_id: str) -> httpx.Response:
    return member.client.post("/sign-out")


def _change_password_elsewhere(admin: Visitor, member: Visitor, person_id: str) -> httpx.Response:
    with Visitor(str(member.client.base_url)) as other:
        other.sign_in("mia")
        return other.client.post("/me/password", data={"current": PASSWORD, "password": NEW_PASSWORD})


def _reset_password(admin: Visitor, member: Visitor, person_id: str) -> httpx.Response:
    page = admin.client.post(f"/team/{person_id}/link").text
    found = re.search(r"/links/([\w-]+)", page)
    assert found
    with Visitor(str(member.client.base_url)) as elsewhere:
        return elsewhere.client.post(f"/links/{found[1]}", data={"name": "Mia", "password": NEW_PASSWORD})


def _revoke_session_elsewhere(admin: Visitor, member: Visitor, person_id: str) -> httpx.Response:
    with Visitor(str(member.client.base_url)) as other:
        other.sign_in("mia")
        sessions = other.client.get("/api/v1/sessions").json()["items"]
        (old,) = [each for each in sessions if not each["is_current"]]
        return other.client.post(f"/sessions/{old['id']}/delete")


def _revoke_all_others(admin: Visitor, member: Visitor, person_id: str) -> httpx.Response:
    with Visitor(str(member.client.base_url)) as other:
        other.sign_in("mia")
        return other.client.post("/sessions/delete")


def _revoke_access(admin: Visitor, member: Visitor, person_id: str) -> httpx.Response:
    return admin.client.post(f"/members/{person_id}/access/delete")


ENDINGS = [
    _disable,
    _disable_by_api,
    _sign_out,
    _change_password_elsewhere,
    _reset_password,
    _revoke_session_elsewhere,
    _revoke_all_others,
    _revoke_access,
]


@pytest.mark.parametrize("revoke", ENDINGS, ids=lambda function: function.__name__.lstrip("_"))
def test_a_session_that_ends_takes_its_streams_along(served: str, revoke: Revoke) -> None:
    make_member(Role.ADMIN, "ada")
    mia = make_member(Role.TRAINER, "mia")
    with Visitor(served) as admin, Visitor(served) as member:
        admin.sign_in("ada")
        member.sign_in("mia")
        with admin.stream() as honest, member.stream() as stream:
            answer = revoke(admin, member, str(mia.id))
            assert answer.status_code in {200, 204, 303}, answer.text
            assert stream.ends_within(NOTICED_WITHIN_SECONDS)
            assert honest.is_open
        assert not member.is_signed_in()
        assert admin.is_signed_in()


def test_a_lowered_role_ends_the_streams_that_need_more(served: str) -> None:
    make_member(Role.ADMIN, "ada")
    mia = make_member(Role.ADMIN, "mia")
    with Visitor(served) as admin, Visitor(served) as member:
        admin.sign_in("ada")
        member.sign_in("mia")
        with admin.stream("/settings/notifications/events") as honest:
            with member.stream("/settings/notifications/events") as stream:
                admin.client.post(f"/team/{mia.id}/role", data={"role": "viewer"})
                assert stream.ends_within(NOTICED_WITHIN_SECONDS)
            assert honest.is_open
        assert member.client.get("/settings/notifications/events").status_code == 403
        with member.stream("/events"):
            assert member.is_signed_in()


def test_a_stream_ends_with_its_token(served: str) -> None:
    make_member(Role.TRAINER, "mia")
    with Visitor(served) as member:
        member.sign_in("mia")
        revoked, kept = member.make_token(), member.make_token()
        with Visitor(served, token=revoked["secret"]) as script, Visitor(served, token=kept["secret"]) as honest:
            with script.stream() as stream, honest.stream() as other:
                assert member.client.delete(f"/api/v1/tokens/{revoked['id']}").status_code == 204
                assert stream.ends_within(NOTICED_WITHIN_SECONDS)
                assert other.is_open
            assert not script.is_signed_in()
            assert honest.is_signed_in()


def test_a_stream_ends_when_its_token_or_session_expires(served: str) -> None:
    make_member(Role.TRAINER, "mia")
    with Visitor(served) as member:
        member.sign_in("mia")
        token = member.make_token()
        with transaction() as session:
            session.scalars(select(ApiToken)).one().expires_at = datetime.now(UTC) + timedelta(seconds=1.5)
        with Visitor(served, token=token["secret"]) as script, script.stream() as stream, member.stream() as honest:
            assert stream.ends_within(1.5 + NOTICED_WITHIN_SECONDS)
            assert honest.is_open
        with transaction() as session:
            session.scalars(select(WebSession)).one().expires_at = datetime.now(UTC) + timedelta(seconds=1.5)
        with member.stream() as stream:
            assert stream.ends_within(1.5 + NOTICED_WITHIN_SECONDS)


def test_a_download_stops_when_its_member_is_disabled(served: str) -> None:
    """And looks broken off, not complete."""
    make_member(Role.ADMIN, "ada")
    mia = make_member(Role.TRAINER, "mia")
    size = 64 << 20
    source = get_settings().data / "large.jsonl"
    source.write_bytes(bytes(size))
    artifacts.put_file(source, "lessons/large")
    with transaction() as session:
        file = ExampleFile(name="large", artifact="lessons/large", size_bytes=size, conversations=1)
        session.add(file)
    with Visitor(served) as admin, Visitor(served) as member:
        admin.sign_in("ada")
        member.sign_in("mia")
        url = f"/api/v1/training/examples/{file.id}/file"
        assert len(admin.client.get(url).content) == size
        with member.client.stream("GET", url) as response:
            chunks = response.iter_raw()
            received = len(next(chunks))
            admin.client.post(f"/team/{mia.id}/disable")
            time.sleep(1)
            with pytest.raises(httpx.RemoteProtocolError):
                received += sum(len(chunk) for chunk in chunks)
            assert received < size


def test_a_token_that_a_token_created_ends_with_it(served: str) -> None:
    make_member(Role.TRAINER, "mia")
    with Visitor(served) as member:
        member.sign_in("mia")
        parent, honest = member.make_token(Role.TRAINER), member.make_token()
        with Visitor(served, token=parent["secret"]) as script:
            child = script.make_token(Role.AUTHOR)
        with Visitor(served, token=child["secret"]) as script:
            grandchild = script.make_token()
        with Visitor(served, token=grandchild["secret"]) as script, Visitor(served, token=honest["secret"]) as other:
            with script.stream() as stream:
                member.client.delete(f"/api/v1/tokens/{parent['id']}")
                assert stream.ends_within(NOTICED_WITHIN_SECONDS)
            assert not script.is_signed_in()
            assert other.is_signed_in()
        with Visitor(served, token=child["secret"]) as script:
            assert not script.is_signed_in()


def test_a_token_cannot_create_one_that_lives_longer_or_does_more(served: str) -> None:
    make_member(Role.TRAINER, "mia")
    with Visitor(served) as member:
        member.sign_in("mia")
        parent = member.make_token(Role.REVIEWER, days=7)
    with Visitor(served, token=parent["secret"]) as script:
        longer = script.client.post("/api/v1/tokens", json={"name": "t", "role": "viewer", "days": 30})
        assert (longer.status_code, list(longer.json()["fields"])) == (422, ["days"])
        more = script.client.post("/api/v1/tokens", json={"name": "t", "role": "trainer", "days": 1})
        assert (more.status_code, list(more.json()["fields"])) == (422, ["role"])
        within = script.make_token(Role.VIEWER, days=3)
        by_default = script.make_token()
    assert within["expires_at"] < parent["expires_at"]
    assert by_default["expires_at"] <= parent["expires_at"]


@pytest.mark.parametrize("revoke", [_disable, _reset_password, _revoke_access, _change_password_elsewhere])
def test_tokens_end_with_the_trust_in_their_member(served: str, revoke: Revoke) -> None:
    make_member(Role.ADMIN, "ada")
    mia = make_member(Role.TRAINER, "mia")
    with Visitor(served) as admin, Visitor(served) as member:
        admin.sign_in("ada")
        member.sign_in("mia")
        honest = admin.make_token()
        with Visitor(served, token=member.make_token()["secret"]) as script:
            assert script.is_signed_in()
            with script.stream() as stream:
                assert revoke(admin, member, str(mia.id)).status_code in {200, 303}
                assert stream.ends_within(NOTICED_WITHIN_SECONDS)
            assert not script.is_signed_in()
            admin.client.post(f"/team/{mia.id}/enable")
            assert not script.is_signed_in(), "an enabled member's old tokens stay revoked"
        with Visitor(served, token=honest["secret"]) as script:
            assert script.is_signed_in()


def test_signing_in_starts_a_new_session_and_ends_the_one_before(served: str) -> None:
    make_member(Role.VIEWER, "mia")
    with Visitor(served) as member:
        member.client.cookies.set(SESSION_COOKIE, "chosen-by-somebody-else", domain="127.0.0.1")
        member.client.headers["Cookie"] = f"{SESSION_COOKIE}=chosen-by-somebody-else"
        answer = member.client.post("/sign-in", data={"email": "mia@example.org", "password": PASSWORD})
        first = answer.cookies[SESSION_COOKIE]
        assert first != "chosen-by-somebody-else"
        member.client.headers["Cookie"] = f"{SESSION_COOKIE}={first}"
        assert member.is_signed_in()
        second = member.client.post("/sign-in", data={"email": "mia@example.org", "password": PASSWORD})
        assert second.cookies[SESSION_COOKIE] != first
        assert not member.is_signed_in()


def test_an_idle_session_ends(served: str) -> None:
    make_member(Role.VIEWER, "mia")
    with Visitor(served) as member:
        member.sign_in("mia")
        for days, is_in in ((13, True), (15, False)):
            with transaction() as session:
                session.scalars(select(WebSession)).one().seen_at = datetime.now(UTC) - timedelta(days=days)
            if is_in:
                with member.stream():
                    assert not _was_just_used(), "an open page is no use"
            assert member.is_signed_in() is is_in
            assert _was_just_used() is is_in


def _was_just_used() -> bool:
    with transaction() as session:
        return session.scalars(select(WebSession.seen_at)).one() > datetime.now(UTC) - timedelta(minutes=1)


def test_the_local_token_outlives_a_password_reset_but_not_its_member(served: str) -> None:
    """The command line of the server's own machine keeps working when its administrator first signs in."""
    ada = make_member(Role.ADMIN, "ada")
    make_member(Role.ADMIN, "bob")
    with transaction() as session:
        local = issue_local_token(session)
    with Visitor(served) as bob, Visitor(served) as member, Visitor(served, token=local) as shell:
        bob.sign_in("bob")
        _reset_password(bob, member, str(ada.id))
        assert shell.is_signed_in()
        bob.client.post(f"/team/{ada.id}/disable")
        assert not shell.is_signed_in()


def test_a_read_only_token_changes_nothing(served: str) -> None:
    make_member(Role.ADMIN, "ada")
    with Visitor(served) as member:
        member.sign_in("ada")
        reads, writes = member.make_token(Role.ADMIN, is_read_only=True), member.make_token(Role.ADMIN)
    invitation = {"name": "Eve", "email": "eve@example.org", "role": "admin"}
    with Visitor(served, token=reads["secret"]) as script, Visitor(served, token=writes["secret"]) as honest:
        assert script.client.get("/api/v1/audit").status_code == 200
        assert script.client.post("/api/v1/members", json=invitation).status_code == 403
        assert script.client.post("/api/v1/tokens", json={"name": "t"}).status_code == 403
        assert script.client.delete(f"/api/v1/tokens/{writes['id']}").status_code == 403
        assert honest.client.post("/api/v1/members", json=invitation).status_code == 201


def test_a_token_revokes_only_itself_and_what_it_created(served: str) -> None:
    make_member(Role.TRAINER, "mia")
    with Visitor(served) as member:
        member.sign_in("mia")
        parent, sibling = member.make_token(), member.make_token()
        (session,) = member.client.get("/api/v1/sessions").json()["items"]
        with Visitor(served, token=parent["secret"]) as script:
            child = script.make_token()
            assert script.client.delete(f"/api/v1/tokens/{sibling['id']}").status_code == 404
            assert script.client.delete(f"/api/v1/sessions/{session['id']}").status_code == 403
            assert script.client.delete("/api/v1/sessions").status_code == 403
            assert script.client.delete(f"/api/v1/tokens/{child['id']}").status_code == 204
            assert script.client.delete(f"/api/v1/tokens/{parent['id']}").status_code == 204
            assert not script.is_signed_in()
        assert member.is_signed_in()


def test_no_token_slips_through_while_its_creator_is_revoked(served: str) -> None:
    make_member(Role.TRAINER, "mia")
    with Visitor(served) as member:
        member.sign_in("mia")
        for _ in range(5):
            parent = member.make_token()

            def create(secret: str = parent["secret"]) -> httpx.Response:
                with Visitor(served, token=secret) as script:
                    return script.client.post("/api/v1/tokens", json={"name": "child"})

            with ThreadPoolExecutor(6) as pool:
                children = [pool.submit(create) for _ in range(5)]
                member.client.delete(f"/api/v1/tokens/{parent['id']}")
                assert {child.result().status_code for child in children} <= {201, 401}
        assert member.client.get("/api/v1/tokens").json()["items"] == []


def test_a_revoked_session_takes_the_tokens_along_that_were_created_in_it(served: str) -> None:
    make_member(Role.TRAINER, "mia")
    with Visitor(served) as thief, Visitor(served) as owner:
        thief.sign_in("mia")
        owner.sign_in("mia")
        stolen, own = thief.make_token(), owner.make_token()
        (session,) = (each for each in owner.client.get("/api/v1/sessions").json()["items"] if not each["is_current"])
        ended = owner.client.delete(f"/api/v1/sessions/{session['id']}").json()
        assert ended == {"device": "Python", "sessions": 1, "tokens": 1}
    for token, works in ((stolen, False), (own, True)):
        with Visitor(served, token=token["secret"]) as script:
            assert script.is_signed_in() is works


def test_another_members_session_cannot_be_revoked(served: str) -> None:
    make_member(Role.TRAINER, "mia")
    make_member(Role.ADMIN, "ada")
    with Visitor(served) as mia, Visitor(served) as ada:
        mia.sign_in("mia")
        ada.sign_in("ada")
        (session,) = mia.client.get("/api/v1/sessions").json()["items"]
        assert ada.client.delete(f"/api/v1/sessions/{session['id']}").status_code == 404
        assert mia.is_signed_in()


def test_the_session_list_shows_nothing_of_a_hostile_user_agent(served: str) -> None:
    make_member(Role.TRAINER, "mia")
    hostile = "<script>alert(1)</script> Firefox/1.0 " + "x" * 20_000
    with Visitor(served, **{"User-Agent": hostile}) as member:
        member.sign_in("mia")
        page = member.client.get("/me").text
        assert "<script>alert" not in page
        assert "xxx" not in page
        (session,) = member.client.get("/api/v1/sessions").json()["items"]
        assert (session["device"], session["address"], session["is_current"]) == ("Firefox", "127.0.0.1", True)


def test_a_stream_outlives_the_revocation_of_something_else(served: str) -> None:
    """Read the rows once, then continue."""
    make_member(Role.TRAINER, "mia")
    with Visitor(served) as member, Visitor(served) as other:
        member.sign_in("mia")
        other.sign_in("mia")
        with member.stream() as stream:
            other.client.post("/sign-out")
            assert not stream.ends_within(NOTICED_WITHIN_SECONDS)
