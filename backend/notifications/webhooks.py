"""Posting a notice to an address: signed, under the outgoing policy, without following redirects.

The three headers are those of Standard Webhooks, so that receivers can use one of its libraries.
"""

import asyncio
import base64
import hashlib
import hmac
import time

import aiohttp

from backend.core.outgoing.client import Redirected, open_session, reason_of, refusal_in
from backend.core.outgoing.errors import describe_body
from backend.notifications.failures import DeliveryFailed
from backend.notifications.messages import Message

TIMEOUT_SECONDS = 15.0
"""For all of it, however slowly the answer drips."""
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
        raise DeliveryFailed(f"The server did not answer within {TIMEOUT_SECONDS:g} seconds.") from error
    except Redirected as error:
        told = f"{error}. Redirects are not followed; enter the address itself."
        raise DeliveryFailed(f"The server answered {told}", is_final=True) from error
    except aiohttp.InvalidURL as error:
        raise DeliveryFailed("The address is not valid.", is_final=True) from error
    except (aiohttp.ClientError, OSError) as error:
        if refusal := refusal_in(error):
            raise DeliveryFailed(str(refusal)) from error
        raise DeliveryFailed(f"The server could not be reached: {reason_of(error)}.") from error


async def _post(url: str, message: Message, secret: str | None) -> None:
    body = message.as_json()
    async with (
        open_session(seconds=TIMEOUT_SECONDS) as session,
        session.post(url, data=body, headers=headers_of(message, body, secret)) as response,
    ):
        if not 200 <= response.status < 300:
            raise _refused(response)


def _refused(response: aiohttp.ClientResponse) -> DeliveryFailed:
    """The body is not read: it may be any service's."""
    status, content_type = response.status, response.headers.get("Content-Type")
    shown = describe_body(content_type, response.content_length or 0)
    is_final = 400 <= status < 500 and status not in _AGAIN
    return DeliveryFailed(f"The server answered HTTP {status} ({shown}).", is_final=is_final)


def _key(secret: str) -> bytes:
    if secret.startswith(_SECRET_PREFIX):
        try:
            return base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
        except ValueError:
            pass
    return secret.encode()
