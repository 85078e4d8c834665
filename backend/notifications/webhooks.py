"""Posting a notice to an address: signed, to an address that may be reached, without following anybody elsewhere.

The three headers are those of Standard Webhooks, so that receivers can use one of its libraries.
"""

import asyncio
import base64
import hashlib
import hmac
import time
from urllib.parse import urlsplit

import httpx

from backend.notifications.failures import DeliveryFailed
from backend.notifications.messages import Message
from backend.outgoing import AddressRefused, allowed_address

TIMEOUT_SECONDS = 15.0
"""For all of it, however slowly the answer drips."""
_READ_CHARACTERS = 300
_AGAIN = {408, 425, 429}
_SECRET_PREFIX = "whsec_"


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """`v1,` and base64 of HMAC-SHA256 over id, timestamp and body with dots between. A secret `whsec_…` is base64."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(_key(secret), signed, hashlib.sha256).digest()).decode()


def headers_of(message: Message, body: bytes, secret: str | None) -> dict[str, str]:
    timestamp = int(time.time())
    headers = {
        "Content-Type": "application/json; charset=utf-8",
        "User-Agent": "Proctor",
        "Webhook-Id": message.delivery_id,
        "Webhook-Timestamp": str(timestamp),
    }
    if secret:
        headers["Webhook-Signature"] = signature(secret, message.delivery_id, timestamp, body)
    return headers


def post(url: str, message: Message, secret: str | None) -> None:
    """Raises DeliveryFailed."""
    try:
        asyncio.run(asyncio.wait_for(_post(url, message, secret), TIMEOUT_SECONDS))
    except TimeoutError as error:
        raise DeliveryFailed(f"It did not answer within {TIMEOUT_SECONDS:g} seconds.") from error
    except httpx.InvalidURL as error:
        raise DeliveryFailed(f"The address cannot be used: {error}.", is_final=True) from error
    except httpx.HTTPError as error:
        raise DeliveryFailed(f"It could not be reached: {error or type(error).__name__}.") from error


async def _post(url: str, message: Message, secret: str | None) -> None:
    body = message.as_json()
    async with httpx.AsyncClient(follow_redirects=False, timeout=TIMEOUT_SECONDS, trust_env=False) as client:
        request = _request(client, url, body, headers_of(message, body, secret))
        answer = await client.send(request, stream=True)
        try:
            if not answer.is_success:
                raise _refused(answer, await _beginning(answer))
        finally:
            await answer.aclose()


def _request(client: httpx.AsyncClient, url: str, body: bytes, headers: dict[str, str]) -> httpx.Request:
    """To the very address that was looked at, under the host's own name."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        address = allowed_address(host, parts.port or (443 if parts.scheme == "https" else 80))
    except AddressRefused as error:
        raise DeliveryFailed(f"{error}.") from error
    if address == host:
        return client.build_request("POST", url, content=body, headers=headers)
    return client.build_request(
        "POST",
        httpx.URL(url).copy_with(host=address),
        content=body,
        headers=headers | {"Host": parts.netloc},
        extensions={"sni_hostname": host},
    )


async def _beginning(answer: httpx.Response) -> str:
    read = b""
    async for part in answer.aiter_raw():
        read += part
        if len(read) >= _READ_CHARACTERS:
            break
    return " ".join(read[:_READ_CHARACTERS].decode("utf-8", "replace").split())


def _refused(answer: httpx.Response, said: str) -> DeliveryFailed:
    status = answer.status_code
    if answer.is_redirect:
        where = answer.headers.get("location", "")[:_READ_CHARACTERS]
        return DeliveryFailed(
            f"It answered {status}: go to {where}. Redirects are not followed; enter the address itself.", is_final=True
        )
    told = f"It answered {status} {answer.reason_phrase}".rstrip() + (f": {said}" if said else ".")
    return DeliveryFailed(told, is_final=400 <= status < 500 and status not in _AGAIN)


def _key(secret: str) -> bytes:
    if secret.startswith(_SECRET_PREFIX):
        try:
            return base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
        except ValueError:
            pass
    return secret.encode()
