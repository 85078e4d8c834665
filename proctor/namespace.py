"""The base of the generated methods. Responses become models of `proctor.models`, which are imported when needed."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from proctor.client import Client

Json = Any
"""A parsed JSON value."""


class Namespace:
    """The operations of one noun."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def _list(self, model: str, path: str, limit: int | None, /, **query: object) -> Iterator[Json]:
        kind = getattr(import_module("proctor.models"), model)
        return (kind.model_validate(item) for item in self._client.pages(path, limit=limit, **query))

    def _call(self, model: str, method: str, path: str, how: str, poll: str = "", /, **values: object) -> Json:
        """Send a request. `how`: send the values as the `query` or the `body`. Values of None are omitted."""
        sent = {name: value for name, value in values.items() if value is not None}
        answer = self._client.request(method, path, **{how: sent} if how == "query" or sent else {"body": {}})
        if not model:
            return answer
        result = getattr(import_module("proctor.models"), model).model_validate(answer)
        return result.polled_at(poll.format(**answer)) if poll else result

    def _change(self, model: str, method: str, path: str, /, **values: object) -> list[Json]:
        """Send a change that returns all changed items at once."""
        sent = {name: value for name, value in values.items() if value is not None}
        kind = getattr(import_module("proctor.models"), model)
        return [kind.model_validate(item) for item in self._client.request(method, path, body=sent)["items"]]

    def _download(self, path: str, to: Path | str | None, /, **query: object) -> Path:
        return self._client.download(path, to, **query)

    def _upload(self, model: str, path: str, files: dict[str, Path | str], /, **fields: object) -> Json:
        sent = {name: value for name, value in fields.items() if value is not None}
        answer = self._client.upload(path, files, sent)
        return getattr(import_module("proctor.models"), model).model_validate(answer) if model else answer


def segment(value: object) -> str:
    """Quote a segment of an address."""
    return quote(str(value), safe="")
