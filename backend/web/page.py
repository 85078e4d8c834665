"""Answers in HTML: a whole page, or one block of it where htmx asks for a part."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any
from urllib.parse import quote, unquote

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from backend.web.identity import Actor
from backend.web.templating import templates

NOTICE_COOKIE = "proctor_notice"
NOTICES_URL = "/notices"


@dataclass(frozen=True, slots=True)
class Place:
    """An entry of the main navigation. `also`: where else one is at this place; `without`: not here."""

    label: str
    url: str
    icon: str
    also: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def is_at(self, path: str) -> bool:
        inside = any(f"{path}/".startswith(f"{start}/") for start in (self.url, *self.also) if start != "/")
        return path == self.url or (inside and not any(path.startswith(other) for other in self.without))


@dataclass(frozen=True, slots=True)
class PlaceGroup:
    """Places that belong to one kind of work; the first group has no label."""

    label: str
    places: tuple[Place, ...]


NAVIGATION = (
    PlaceGroup("", (Place("Overview", "/", "overview"),)),
    PlaceGroup(
        "Define",
        (
            Place("Environments", "/environments", "environment"),
            Place("Policies", "/policies", "policy"),
            Place("Graders", "/graders", "judge"),
        ),
    ),
    PlaceGroup(
        "Measure",
        (
            Place(
                "Runs",
                "/runs",
                "run",
                also=("/rollouts", "/evaluations", "/training", "/rescores"),
                without=("/training/examples",),
            ),
            Place("Compare", "/compare", "compare"),
            Place("Leaderboards", "/leaderboards", "leaderboard"),
            Place("Review", "/review", "review", also=("/detectors",)),
        ),
    ),
    PlaceGroup(
        "Train",
        (
            Place("Training data", "/data/sft", "data", also=("/data", "/training/examples")),
            Place("Checkpoints", "/checkpoints", "checkpoint", also=("/exports",)),
        ),
    ),
)
SIDE_DOORS = (
    Place("Notices", NOTICES_URL, "bell"),
    Place("Team", "/team", "team"),
    Place("Settings", "/settings", "settings"),
)


def wants_block(request: Request) -> bool:
    """Does htmx swap a part of the page? Never when it restores one from the history."""
    headers = request.headers
    return (
        headers.get("hx-request") == "true"
        and headers.get("hx-request-type") != "full"
        and headers.get("hx-boosted") != "true"
        and headers.get("hx-history-restore-request") != "true"
    )


def page(request: Request, template: str, context: Any, *, block: str | None = None, status: int = 200) -> HTMLResponse:
    """The page, or its `block` when htmx asks for a part. `context` is the page's own dataclass."""
    if block and wants_block(request):
        html = render_block(request, template, block, context)
    else:
        html = templates().get_template(template).render(_surroundings(request) | _names(context))
    response = HTMLResponse(html, status_code=status, headers={"Vary": "HX-Request, HX-Request-Type"})
    if NOTICE_COOKIE in request.cookies:
        response.delete_cookie(NOTICE_COOKIE, path="/")
    return response


def render_block(request: Request, template: str, block: str, context: Any) -> str:
    """One block of a page, as a live stream or a partial answer sends it."""
    loaded = templates().get_template(template)
    names = _surroundings(request) | _names(context)
    return "".join(loaded.blocks[block](loaded.new_context(names)))


def see_other(url: str, notice: str = "") -> Response:
    """After a change: go there, and say `notice` on that page. htmx gets the same as a client-side redirect."""
    response = RedirectResponse(url, status_code=303)
    if notice:
        response.set_cookie(NOTICE_COOKIE, quote(notice[:300]), max_age=60, httponly=True, samesite="lax", path="/")
    return response


def current_actor(request: Request) -> Actor | None:
    return getattr(request.state, "actor", None)


def _surroundings(request: Request) -> dict[str, Any]:
    """What `base.html` needs on every page."""
    actor = current_actor(request)
    return {
        "actor": actor,
        "csrf_token": actor.csrf_token if actor else "",
        "navigation": NAVIGATION,
        "side_doors": SIDE_DOORS,
        "notice": unquote(request.cookies.get(NOTICE_COOKIE, "")),
        "here": request.url.path.removesuffix("/events"),  # a page's stream draws parts of that page
        "path": request.url.path,
    }


def _names(context: Any) -> dict[str, Any]:
    if is_dataclass(context) and not isinstance(context, type):
        return {field.name: getattr(context, field.name) for field in fields(context)}
    if isinstance(context, Mapping):
        return dict(context)
    raise TypeError("a page's context is a dataclass or a mapping")
