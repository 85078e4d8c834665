"""What every answer carries and every request must respect: security headers, same site, htmx redirects."""

from fastapi import Request
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backend.web.csrf import ForgedRequest, is_cross_site
from backend.web.error_pages import respond

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
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


class Guard:
    """Refuses cross-site changes before any route runs; adds the headers after."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        request = Request(scope, receive)
        is_htmx = request.headers.get("hx-request") == "true"

        async def decorated(message: Message) -> None:
            if message["type"] == "http.response.start":
                _decorate(message, is_htmx=is_htmx)
            await send(message)

        app = respond(request, ForgedRequest()) if is_cross_site(request) else self.app
        await app(scope, receive, decorated)


def _decorate(message: Message, *, is_htmx: bool) -> None:
    headers = MutableHeaders(scope=message)
    for name, value in _HEADERS.items():
        headers.setdefault(name, value)
    if headers.get("content-type", "").startswith(("text/html", "application/json")):
        headers.setdefault("Cache-Control", "no-store")
    if is_htmx and message["status"] == 303:
        # fetch would follow a 303 by itself and swap the whole next page into the form
        message["status"] = 200
        headers["HX-Redirect"] = headers["location"]
        del headers["location"]
