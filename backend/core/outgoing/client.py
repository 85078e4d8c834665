"""HTTP requests to addresses that users chose: the policy is enforced where the socket is made.

A name is resolved once and every address is checked; IP literals, which aiohttp never resolves, are checked too.
Redirects are never followed, so a key goes only to the host that it was entered for. Proxies of the process's
environment are not used, because a proxy would resolve the name again.
"""

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from backend.core.outgoing import AddressRefused, CannotConnect, OutgoingPolicy, outgoing_policy

DNS_CACHE_SECONDS = 60
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAX_LOCATION = 200


class BodyTooLarge(ValueError):
    """A response body is larger than its limit."""


class Redirected(aiohttp.ClientError):
    """The server redirects; redirects are not followed."""

    def __init__(self, status: int, location: str) -> None:
        try:
            parts = urlsplit(location)
        except ValueError:
            parts = urlsplit("")
        shown = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))  # no secrets
        self.status = status
        self.location = "".join(character for character in shown if character.isprintable())[:_MAX_LOCATION]
        super().__init__(f"HTTP {status}: it redirects to {self.location or 'no address'}")


def open_session(
    *, seconds: float | None, headers: Mapping[str, str] | None = None, policy: OutgoingPolicy | None = None
) -> aiohttp.ClientSession:
    """Return a session whose connections obey `policy`, by default the installation's.

    `seconds` bounds each request with its body; None leaves that to the caller. A redirect raises Redirected, in a
    WebSocket's handshake too. Error text for people comes from `reason_of`.
    """
    gate = _Gate(policy or outgoing_policy())
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0, resolver=gate, ttl_dns_cache=DNS_CACHE_SECONDS, socket_factory=gate.make_socket
        ),
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=seconds),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        middlewares=(_refuse_redirects,),
    )


async def read_body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Return the whole body. Raises BodyTooLarge once more than `limit` bytes came, decompressed ones included."""
    size = response.content_length
    if size is not None and size <= limit and "Content-Encoding" not in response.headers:
        return await response.read()
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > limit:
            raise BodyTooLarge(f"the response is larger than {limit:,} bytes")
    return bytes(body)


def refusal_in(error: BaseException) -> AddressRefused | None:
    """Return the policy's refusal that a failed request carries, if there is one."""
    inner = getattr(error, "os_error", None) or error
    return inner if isinstance(inner, AddressRefused) else None


def reason_of(error: BaseException) -> str:
    """Explain why a request failed without repeating anything that the server sent, except for a redirect."""
    inner = getattr(error, "os_error", None) or error
    if isinstance(inner, CannotConnect):
        return str(inner).rstrip(".")
    match error:
        case Redirected() | BodyTooLarge():
            return str(error)
        case TimeoutError():
            return "it did not answer in time"
        case aiohttp.ClientConnectorDNSError():
            return "its host name cannot be resolved"
        case aiohttp.ClientConnectorCertificateError():
            refusal = error.certificate_error
            return (
                f"its TLS certificate was refused ({getattr(refusal, 'verify_message', '') or type(refusal).__name__})"
            )
        case aiohttp.ClientConnectorSSLError():
            return "TLS failed; the server may expect http://"
        case aiohttp.InvalidURL():
            return "this is not a valid address"
        case aiohttp.WSServerHandshakeError():
            return f"HTTP {error.status} instead of a WebSocket"
        case aiohttp.ClientPayloadError():
            return "it broke off in the middle of its answer"
        case aiohttp.ServerDisconnectedError():
            return "it closed the connection without an answer"
        case aiohttp.ClientResponseError():
            return "it does not speak HTTP"
        case OSError() if isinstance(inner, ssl.SSLError):
            return "TLS failed; the server may expect http://"
        case OSError():
            number = getattr(inner, "errno", None)
            if isinstance(number, int) and number in errno.errorcode:
                return f"the connection failed ({os.strerror(number)})"
            return "the connection failed"
        case _:
            return type(error).__name__


class _Gate(AbstractResolver):
    """Resolves names under a policy, and makes sockets only for addresses that the policy allows."""

    def __init__(self, policy: OutgoingPolicy) -> None:
        self._policy = policy
        self._resolved: dict[tuple[str, int], str] = {}
        """The name behind each address and port, because an allow list may hold names."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        target = await asyncio.get_running_loop().run_in_executor(None, self._policy.resolve, host, port)
        for address in target.addresses:
            self._resolved[address, port] = target.host
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in target.addresses
        ]

    async def close(self) -> None:
        """Nothing to close."""

    def make_socket(self, info: tuple[Any, ...]) -> socket.socket:
        """Check the address again: literals never pass `resolve`."""
        family, kind, protocol, _, (address, port, *_rest) = info
        self._policy.check(self._resolved.get((address, port), str(address)), str(address), port)
        return socket.socket(family, kind, protocol)


async def _refuse_redirects(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    response = await handler(request)
    if response.status in _REDIRECTS:
        response.close()
        raise Redirected(response.status, response.headers.get("Location", ""))
    return response
