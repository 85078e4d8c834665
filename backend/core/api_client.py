"""The JSON API of a running Proctor, spoken with a token: what the command line and the showcase use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx

TIMEOUT_SECONDS = 60.0
UPLOAD_SECONDS = 600.0


class Refused(RuntimeError):
    """The server refused, in its own words, or does not answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
        """Of HTTP; 0 where nobody answered."""


class Client:
    """Answers are plain JSON values. Raises Refused."""

    def __init__(self, url: str, token: str) -> None:
        import httpx  # not needed by `up`, which should start fast

        self.url = url.rstrip("/")
        self._http = httpx.Client(
            base_url=f"{self.url}/api/v1", headers={"Authorization": f"Bearer {token}"}, timeout=TIMEOUT_SECONDS
        )

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, **query: object) -> Any:
        return self.ask("GET", path, query=query)

    def post(self, path: str, body: object = None) -> Any:
        return self.ask("POST", path, body={} if body is None else body)

    def put(self, path: str, body: object) -> Any:
        return self.ask("PUT", path, body=body)

    def delete(self, path: str) -> None:
        self.ask("DELETE", path)

    def find(self, path: str) -> Any | None:
        """None where there is nothing."""
        response = self._send("GET", path)
        return None if response.status_code == 404 else self._answer(response)

    def all(self, path: str, limit: int | None = None, **query: object) -> Iterator[dict[str, Any]]:
        """The items of a list, page by page, at most `limit`."""
        given = 0
        after = None
        while True:
            page = self.get(path, after=after, **query)
            for item in page["items"]:
                if limit is not None and given >= limit:
                    return
                given += 1
                yield item
            after = page["next"]
            if after is None:
                return

    def download(self, path: str, target: Path, **query: object) -> int:
        """Store the answer's bytes; a broken download leaves no file."""
        import httpx

        partial = target.with_name(target.name + ".partial")
        try:
            with self._http.stream("GET", path, params=_parameters(query)) as response, partial.open("wb") as file:
                if not response.is_success:
                    response.read()
                    self._answer(response)
                for part in response.iter_bytes():
                    file.write(part)
            return partial.rename(target).stat().st_size
        except httpx.TransportError as error:
            raise Refused(f"{self.url} broke off in the middle: {error}") from error
        finally:
            partial.unlink(missing_ok=True)

    def upload(self, path: str, file: Path, fields: Mapping[str, object]) -> Any:
        """A file with the fields of a form."""
        import httpx

        with file.open("rb") as opened:
            try:
                answer = self._http.post(
                    path, files={"file": (file.name, opened)}, data=_parameters(fields), timeout=UPLOAD_SECONDS
                )
            except httpx.TransportError as error:
                raise Refused(f"no Proctor answers at {self.url} ({error})") from error
        return self._answer(answer)

    def ask(self, method: str, path: str, *, query: Mapping[str, object] | None = None, body: object = None) -> Any:
        return self._answer(self._send(method, path, query, body))

    def _send(
        self, method: str, path: str, query: Mapping[str, object] | None = None, body: object = None
    ) -> httpx.Response:
        import httpx

        parameters = _parameters(query or {})
        try:
            return self._http.request(method, path, params=parameters, json=body)
        except httpx.TransportError as error:
            raise Refused(f"no Proctor answers at {self.url} ({error})") from error

    def _answer(self, response: httpx.Response) -> Any:
        if response.is_redirect:  # never followed: the token belongs to this address
            where = response.headers.get("location", "")
            raise Refused(
                f"{self.url} redirects to {where}: set PROCTOR_URL to the address itself", response.status_code
            )
        if not response.is_error:
            return response.json() if response.content else None
        try:
            problem = response.json()
            words = [str(problem["detail"]), *(f"  {name}: {text}" for name, text in problem.get("fields", {}).items())]
        except (ValueError, KeyError, TypeError):
            words = [f"{response.request.method} {response.request.url} answered {response.status_code}"]
        raise Refused("\n".join(words), response.status_code)


def _parameters(values: Mapping[str, object]) -> dict[str, str | list[str]]:
    """Without what is None; lists are repeated."""
    return {
        name: [str(each) for each in value] if isinstance(value, list) else str(value)
        for name, value in values.items()
        if value is not None
    }
