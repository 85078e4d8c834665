"""Single requests to a model endpoint for a look at it: plain answers, short words, nothing retried."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from backend.core.outgoing.client import BodyTooLarge, Redirected, read_body, reason_of
from backend.core.outgoing.errors import advice_for, describe_body, error_code

MAX_BYTES = 2_000_000
TOKENS = 32


class Unreachable(Exception):
    """No answer of HTTP came, or only a redirect."""

    def __init__(self, reason: str, *, is_redirect: bool = False) -> None:
        super().__init__(reason)
        self.is_redirect = is_redirect


@dataclass(slots=True)
class Answer:
    status: int
    body: Any
    """JSON, or None where it is none."""
    shown: str
    """Its error code, or its type and size; never its words."""
    advice: str
    seconds: float
    wants_newer_limit: bool = False
    """It mentions `max_completion_tokens`."""

    @property
    def message(self) -> dict[str, Any]:
        """The first choice's message; empty where the answer has not the API's form."""
        try:
            found = self.body["choices"][0]["message"]
        except (KeyError, IndexError, TypeError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def is_completion(self) -> bool:
        return self.status == 200 and bool(self.message)


@dataclass(slots=True)
class Asking:
    """One endpoint and how it is asked."""

    base_url: str
    model: str
    key: str | None = field(repr=False)
    extra: Mapping[str, Any]
    session: aiohttp.ClientSession
    limit_field: str = "max_tokens"

    async def completion(self, question: str, **fields: Any) -> Answer:
        body = {"model": self.model, "messages": [{"role": "user", "content": question}], self.limit_field: TOKENS}
        answer = await self.ask("POST", "/chat/completions", body | dict(self.extra) | fields)
        if answer.status == 400 and self.limit_field == "max_tokens" and answer.wants_newer_limit:
            self.limit_field = "max_completion_tokens"
            more = {("max_completion_tokens" if name == "max_tokens" else name): v for name, v in fields.items()}
            return await self.completion(question, **more)
        return answer

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        began = time.monotonic()
        url = f"{self.base_url.rstrip('/')}{path}"
        try:
            async with self.session.request(method, url, json=body) as response:
                content = await read_body(response, MAX_BYTES)
        except (aiohttp.ClientError, OSError, BodyTooLarge) as error:
            raise Unreachable(reason_of(error), is_redirect=isinstance(error, Redirected)) from error
        return Answer(
            response.status,
            _read(content),
            error_code(content, self.key) or describe_body(response.headers.get("Content-Type"), content),
            advice_for(response.status, content),
            time.monotonic() - began,
            b"max_completion_tokens" in content,
        )


def _read(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None
