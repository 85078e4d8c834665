"""A served installation and the people and scripts that visit it over HTTP."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import httpx

from backend.core.session import transaction
from backend.domain.vocabulary import Role
from backend.team.passwords import hash_password
from backend.team.tables import Person

PASSWORD = "correct horse battery"
NEW_PASSWORD = "another good sentence"
NOTICED_WITHIN_SECONDS = 2.0


def make_member(role: Role, name: str) -> Person:
    """A member with the password PASSWORD and the address NAME@example.org."""
    with transaction() as session:
        person = Person(email=f"{name}@example.org", name=name, role=role, password_hash=hash_password(PASSWORD))
        session.add(person)
    return person


class Visitor:
    """A browser, or with `token` a script."""

    def __init__(self, address: str, *, token: str = "", **headers: str) -> None:
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self.client = httpx.Client(base_url=address, headers=headers, timeout=20, verify=False)

    def __enter__(self) -> "Visitor":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.client.close()

    def sign_in(self, name: str, password: str = PASSWORD) -> httpx.Response:
        response = self.client.post("/sign-in", data={"email": f"{name}@example.org", "password": password})
        if response.status_code == 303:
            page = self.client.get("/me").text
            found = re.search(r'name="csrf_token" value="([^"]+)"', page)
            assert found, "the account page has no CSRF token"
            self.client.headers["X-CSRF-Token"] = found[1]
        return response

    def is_signed_in(self) -> bool:
        return self.client.get("/api/v1/me").status_code == 200

    def make_token(self, role: Role = Role.VIEWER, **fields: object) -> dict[str, str]:
        response = self.client.post("/api/v1/tokens", json={"name": "script", "role": role, **fields})
        assert response.status_code == 201, response.text
        token: dict[str, str] = response.json()
        return token

    @contextmanager
    def stream(self, url: str = "/events") -> Iterator["OpenStream"]:
        """An open event stream that has sent its first event."""
        stream = OpenStream(self.client, url)
        try:
            stream.wait_until_open()
            yield stream
        finally:
            stream.close()


class OpenStream:
    """Reads a stream in a thread until the server ends it."""

    def __init__(self, client: httpx.Client, url: str) -> None:
        self._client = httpx.Client(
            base_url=client.base_url,
            headers=client.headers,
            cookies=client.cookies,
            timeout=httpx.Timeout(20, read=30),
            verify=False,
        )
        self._opened, self._ended = threading.Event(), threading.Event()
        self.status = 0
        self._response: httpx.Response | None = None
        self._thread = threading.Thread(target=self._read, args=(url,), daemon=True)
        self._thread.start()

    def _read(self, url: str) -> None:
        try:
            with self._client.stream("GET", url) as response:
                self._response, self.status = response, response.status_code
                for _ in response.iter_raw():
                    self._opened.set()
        except httpx.HTTPError:
            pass
        finally:
            self._ended.set()
            self._opened.set()

    def wait_until_open(self) -> None:
        assert self._opened.wait(10), "the stream sent nothing"
        assert self.status == 200, self.status
        time.sleep(0.1)
        assert not self._ended.is_set(), "the stream ended at once"

    def ends_within(self, seconds: float) -> bool:
        return self._ended.wait(seconds)

    @property
    def is_open(self) -> bool:
        return not self._ended.is_set()

    def close(self) -> None:
        self._client.close()
