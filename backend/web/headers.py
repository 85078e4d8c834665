"""What every response carries and every request must respect: security headers, cookies over TLS, same site, htmx
redirects."""

from collections.abc import Iterable, Iterator

from fastapi import Request
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backend.settings import get_settings
from backend.web.csrf import ForgedRequest, is_cross_site
from backend.web.error_pages import respond
from backend.web.refill import RECEIVED_HEADERS

_CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'self'",
        "img-src 'self' data:",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    "Content-Security-Policy": _CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
_STRICT_TRANSPORT_SECURITY = "max-age=31536000"
"""One year. Without `includeSubDomains`: other hosts under the domain are not ours to decide about."""
_OUR_COOKIES = "proctor_"
_HOST_PREFIX, _SECURE_PREFIX = "__Host-", "__Secure-"
"""Browsers accept names with these prefixes only from a TLS response, so that no other host can plant them."""


class Guard:
    """Refuses cross-site changes before any route runs; adds the headers after.

    Over TLS, our cookies have a prefixed name in the browser and their plain name in the application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        is_secure = scope["scheme"] == "https" or get_settings().has_secure_cookies
        if is_secure:
            scope[RECEIVED_HEADERS] = scope["headers"]
            scope["headers"] = list(_without_prefixes(scope["headers"]))  # in place: outer layers share the scope
        request = Request(scope, receive)
        is_htmx = request.headers.get("hx-request") == "true"

        async def decorated(message: Message) -> None:
            if message["type"] == "http.response.start":
                if is_secure:
                    _secure(message)
                _decorate(message, is_htmx=is_htmx)
            await send(message)

        app = respond(request, ForgedRequest()) if is_cross_site(request) else self.app
        await app(scope, receive, decorated)


def _without_prefixes(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Give our cookies their plain names, and drop those that did not arrive with a prefix."""
    for name, value in headers:
        if name != b"cookie":
            yield name, value
            continue
        kept = []
        for cookie in value.decode("latin-1").split(";"):
            plain = cookie.strip().removeprefix(_HOST_PREFIX).removeprefix(_SECURE_PREFIX)
            if plain != cookie.strip() or not plain.startswith(_OUR_COOKIES):
                kept.append(plain)
        yield name, "; ".join(kept).encode("latin-1")


def _secure(message: Message) -> None:
    headers = MutableHeaders(scope=message)
    headers.setdefault("Strict-Transport-Security", _STRICT_TRANSPORT_SECURITY)
    message["headers"] = [
        (name, _secure_cookie(value.decode("latin-1")).encode("latin-1") if name == b"set-cookie" else value)
        for name, value in message["headers"]
    ]


def _secure_cookie(cookie: str) -> str:
    if not cookie.startswith(_OUR_COOKIES):
        return cookie
    attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
    prefix = _HOST_PREFIX if "path=/" in attributes else _SECURE_PREFIX
    return prefix + cookie + ("" if "secure" in attributes else "; Secure")


def _decorate(message: Message, *, is_htmx: bool) -> None:
    headers = MutableHeaders(scope=message)
    for name, value in _HEADERS.items():
        headers.setdefault(name, value)
    headers.setdefault("Cache-Control", "no-store")
    if is_htmx and message["status"] == 303:
        # fetch would follow a 303 by itself and swap the whole next page into the form
        message["status"] = 200
        headers["HX-Redirect"] = headers["location"]
        del headers["location"]
