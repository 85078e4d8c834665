"""Security headers, cookies over TLS, and the settings that production refuses to start with."""

import re
from collections.abc import Iterator

import pytest
from argon2 import PasswordHasher
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import ValidationError
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.settings import Settings, get_settings
from backend.web.identity import SESSION_COOKIE
from tests.web_fixtures import *  # noqa: F403
from tests.web_fixtures import make_person

PASSWORD = "correct horse battery"
HASH = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1).hash(PASSWORD)
SECRET = "k" * 43
HSTS = "strict-transport-security"


@pytest.fixture
def person(session: Session) -> None:
    make_person(session, Role.VIEWER, "ann@example.org").password_hash = HASH
    session.flush()


@pytest.fixture
def https(app: FastAPI, person: None) -> TestClient:
    """A browser that reaches Proctor through TLS."""
    client = TestClient(app, base_url="https://proctor.example.org", follow_redirects=False)
    client.portal = getattr(app.state, "portal", None)
    return client


@pytest.fixture
def https_address(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PROCTOR_PUBLIC_URL", "https://proctor.example.org")
    get_settings.cache_clear()
    yield
    get_settings.cache_clear()


def sign_in(client: TestClient) -> list[str]:
    """Sign in and return the Set-Cookie headers."""
    response = client.post("/sign-in", data={"email": "ann@example.org", "password": PASSWORD})
    assert response.status_code == 303
    return response.headers.get_list("set-cookie")


@pytest.mark.slow
@pytest.mark.parametrize("url", ["/", "/sign-in", "/api/v1/me", "/no-such-page", "/api/v1/openapi.json", "/healthz"])
def test_every_response_carries_the_security_headers(viewer: TestClient, stranger: TestClient, url: str) -> None:
    for client in (viewer, stranger):
        headers = client.get(url).headers

        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cross-origin-opener-policy"] == "same-origin"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "camera=()" in headers["permissions-policy"]
        assert headers["cache-control"] == "no-store"
        policy = headers["content-security-policy"]
        for directive in ("default-src 'self'", "frame-ancestors 'none'", "object-src 'none'", "form-action 'self'"):
            assert directive in policy
        assert "unsafe" not in policy


def test_only_versioned_files_without_content_of_users_are_cached(viewer: TestClient) -> None:
    assert "immutable" in viewer.get("/static/vendor/htmx-4.0.1/htmx.min.js").headers["cache-control"]
    for url in ("/runs", "/rollouts", "/me"):
        assert viewer.get(url).headers["cache-control"] == "no-store"


def test_without_tls_there_is_no_hsts_and_sign_in_works(stranger: TestClient, person: None) -> None:
    (cookie,) = [each for each in sign_in(stranger) if each.startswith(SESSION_COOKIE)]

    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "Secure" not in cookie
    assert stranger.get("/api/v1/me").status_code == 200
    assert HSTS not in stranger.get("/").headers


def test_over_tls_cookies_are_secure_and_belong_to_this_host_only(https: TestClient) -> None:
    cookies = sign_in(https)

    assert cookies
    for cookie in cookies:
        assert cookie.startswith(("__Host-proctor_", "__Secure-proctor_"))
        assert "; Secure" in cookie
        assert "domain" not in cookie.lower()
    (session,) = [each for each in cookies if SESSION_COOKIE in each]
    assert session.startswith(f"__Host-{SESSION_COOKIE}=")
    assert "Path=/;" in session
    assert https.get("/api/v1/me").status_code == 200
    assert https.get("/").headers[HSTS] == "max-age=31536000"


def test_over_tls_a_planted_cookie_without_the_prefix_counts_for_nothing(https: TestClient) -> None:
    sign_in(https)
    secret = https.cookies[f"__Host-{SESSION_COOKIE}"]
    assert https.get("/api/v1/me").status_code == 200

    https.cookies.clear()

    assert https.get("/api/v1/me", headers={"Cookie": f"{SESSION_COOKIE}={secret}"}).status_code == 401
    twin = f"other=1; __Host-{SESSION_COOKIE}={secret}"
    assert https.get("/api/v1/me", headers={"Cookie": twin}).status_code == 200


def test_signing_out_over_tls_removes_the_cookie(https: TestClient) -> None:
    sign_in(https)
    token = https.get("/me").text.partition('name="csrf_token" value="')[2].partition('"')[0]

    response = https.post("/sign-out", data={"csrf_token": token}, headers={"Origin": "https://proctor.example.org"})

    assert response.status_code == 303
    assert https.get("/api/v1/me").status_code == 401
    assert f"__Host-{SESSION_COOKIE}" not in https.cookies


def test_an_https_address_is_enough_behind_a_proxy_that_reports_nothing(
    https_address: None, stranger: TestClient, person: None
) -> None:
    """The proxy may speak plain HTTP to Proctor and set no X-Forwarded-Proto."""
    cookies = sign_in(stranger)

    assert all("; Secure" in cookie and cookie.startswith("__") for cookie in cookies)
    assert HSTS in stranger.get("/").headers


def production(**more: object) -> Settings:
    values = {"stage": "production", "secret_key": SECRET, **more}
    return Settings(_env_file=None, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["http://proctor.example.org", "http://10.0.0.5:8000", "http://0.0.0.0:8000"])
def test_production_refuses_sign_in_without_encryption(url: str) -> None:
    with pytest.raises(ValidationError, match="Put a TLS proxy in front") as refused:
        production(public_url=url)

    assert "PROCTOR_SECURE_COOKIES=false" in str(refused.value)
    assert not production(public_url=url, secure_cookies=False).has_secure_cookies
    assert production(public_url=url.replace("http:", "https:")).has_secure_cookies
    assert not Settings(_env_file=None, public_url=url).has_secure_cookies  # type: ignore[call-arg]


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "http://localhost", "http://[::1]:8000"])
def test_production_on_loopback_needs_no_encryption(url: str) -> None:
    assert not production(public_url=url).has_secure_cookies


@pytest.mark.parametrize(
    ("name", "value", "good"),
    [
        ("secret_key", "", SECRET),
        ("secret_key", "development-only-secret-key", SECRET),
        ("secret_key", "changeme", SECRET),
        ("secret_key", "short", SECRET),
        ("envhost_token", "example", SECRET),
        ("database_url", "postgresql://proctor:password@db/proctor", f"postgresql://proctor:{SECRET}@db/proctor"),
        ("redis_url", "redis://:changeme@redis:6379/0", f"redis://:{SECRET}@redis:6379/0"),
    ],
)
def test_production_refuses_secrets_that_can_be_guessed(name: str, value: str, good: str) -> None:
    with pytest.raises(ValidationError, match="must be set in production"):
        production(**{name.upper() if name.endswith("_url") else name: value})

    production(**{name.upper() if name.endswith("_url") else name: good})


def test_an_empty_line_of_the_environment_means_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROCTOR_SECURE_COOKIES", "")
    monkeypatch.setenv("PROCTOR_ENVIRONMENTS_GB", "")

    settings = Settings(_env_file=None)  # type: ignore[call-arg]

    assert settings.secure_cookies is None
    assert settings.environments_gb == 20.0


def test_a_refused_form_keeps_its_input_over_tls(https: TestClient) -> None:
    sign_in(https)
    [token] = set(re.findall(r'name="csrf_token" value="([^"]+)"', https.get("/me").text))
    data = {"current": PASSWORD, "password": "short one", "csrf_token": token}
    refused = https.post("/me/password", data=data, headers={"Referer": "https://proctor.example.org/me"})

    assert refused.status_code == 422
    assert 'action="/me/password"' in refused.text
