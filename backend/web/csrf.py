"""Forged requests: every change that a cookie authorises must also carry the session's CSRF token."""

import hmac
from urllib.parse import urlsplit

from fastapi import Request

from backend.errors import NotAllowed
from backend.web.identity import Actor

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
CSRF_FIELD = "csrf_token"
CSRF_HEADER = "x-csrf-token"
_FORM_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data")


class ForgedRequest(NotAllowed):
    """This form is too old or did not come from a page of Proctor. Reload the page and send it again."""


async def check_csrf(request: Request, actor: Actor) -> None:
    """Scripts with an API token need no CSRF token: no browser sends theirs by itself."""
    if request.method in SAFE_METHODS or actor.is_token:
        return
    sent = request.headers.get(CSRF_HEADER) or await _form_token(request)
    if not hmac.compare_digest(sent.encode(), actor.csrf_token.encode()):
        raise ForgedRequest


async def _form_token(request: Request) -> str:
    if not request.headers.get("content-type", "").startswith(_FORM_TYPES):
        return ""
    token = (await request.form()).get(CSRF_FIELD)
    return token if isinstance(token, str) else ""


def is_cross_site(request: Request) -> bool:
    """Did another site's page send this? Covers sign-in too, where there is no session yet."""
    if request.method in SAFE_METHODS:
        return False
    if request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        return True
    origin = request.headers.get("origin")
    return origin is not None and _host_of(origin) != request.headers.get("host")


def _host_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:  # a bracket without its end
        return None
