"""Single requests to a model endpoint for a look at it: plain answers, short words, nothing retried."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from backend.domain.text import plain_text
from workers.policies.endpoints import PrivateAddress

MAX_BYTES = 2_000_000
MAX_TOLD = 300
"""Characters of an endpoint's own words in a sentence."""
TOKENS = 32


class Unreachable(Exception):
    """No answer of HTTP came."""


@dataclass(slots=True)
class Answer:
    status: int
    body: Any
    """JSON, or the text where it is none."""
    location: str
    seconds: float

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

    @property
    def words(self) -> str:
        """The endpoint's own, cut."""
        found = self.body
        if isinstance(found, dict):
            found = found.get("error", found.get("detail", found))
            found = found.get("message", found) if isinstance(found, dict) else found
        text = found if isinstance(found, str) else json.dumps(found, default=str)
        return " ".join(plain_text(text).split())[:MAX_TOLD] or "nothing"


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
        if answer.status == 400 and self.limit_field == "max_tokens" and "max_completion_tokens" in str(answer.body):
            self.limit_field = "max_completion_tokens"
            more = {("max_completion_tokens" if name == "max_tokens" else name): v for name, v in fields.items()}
            return await self.completion(question, **more)
        return answer

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        began = time.monotonic()
        url = f"{self.base_url.rstrip('/')}{path}"
        try:
            async with self.session.request(method, url, json=body, allow_redirects=False) as response:
                text = (await _bounded(response)).decode(errors="replace")
                location = response.headers.get("Location", "")[:MAX_TOLD]
                return Answer(response.status, _read(self._hide(text)), location, time.monotonic() - began)
        except PrivateAddress as error:
            raise Unreachable(str(error).rstrip(".")) from error
        except TimeoutError as error:
            raise Unreachable("it did not answer in time") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unreachable(self._hide(str(error) or type(error).__name__)[:MAX_TOLD].rstrip(".")) from error

    def _hide(self, text: str) -> str:
        """Some endpoints repeat the key."""
        return text.replace(self.key, "***") if self.key else text


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    found = bytearray()
    async for chunk in response.content.iter_any():
        found += chunk
        if len(found) > MAX_BYTES:
            raise ValueError(f"it answered more than {MAX_BYTES:,} bytes")
    return bytes(found)
