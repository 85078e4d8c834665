"""HTML responses: a whole page, or one block of it if htmx requests a part."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from urllib.parse import quote, unquote

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from backend.web.docs_links import section_about
from backend.web.identity import Actor
from backend.web.templating import templates

NOTICE_COOKIE = "proctor_notice"
UNDO_COOKIE = "proctor_undo"
_UNDO = re.compile(r"(/[a-z]+){1,2}/[0-9a-f-]{36}/undo")
NOTICES_URL = "/notices"


@dataclass(frozen=True, slots=True)
class NavigationEntry:
    """An entry of the main navigation."""

    label: str
    url: str
    icon: str
    also: tuple[str, ...] = ()
    """Further paths that belong to it."""
    without: tuple[str, ...] = ()
    """Paths that do not belong to it."""

    def is_at(self, path: str) -> bool:
        inside = any(f"{path}/".startswith(f"{start}/") for start in (self.url, *self.also) if start != "/")
        return path == self.url or (inside and not any(path.startswith(other) for other in self.without))


NAVIGATION = {
    "": (NavigationEntry("Overview", "/", "overview"),),
    "Define": (
        NavigationEntry("Environments", "/environments", "environment"),
        NavigationEntry("Policies", "/policies", "policy"),
        NavigationEntry("Graders", "/graders", "judge"),
    ),
    "Measure": (
        NavigationEntry(
            *("Runs", "/runs", "run"),
            also=("/rollouts", "/evaluations", "/rescores"),
        ),
        NavigationEntry("Compare", "/compare", "compare"),
        NavigationEntry("Leaderboards", "/leaderboards", "leaderboard"),
        NavigationEntry("Review", "/review", "review", also=("/detectors",)),
    ),
    "Train": (
        NavigationEntry("Training", "/training", "train", also=("/sweeps",), without=("/training/examples",)),
        NavigationEntry("Training data", "/data/sft", "data", also=("/data", "/training/examples")),
        NavigationEntry("Checkpoints", "/checkpoints", "checkpoint", also=("/exports",)),
    ),
}
"""Entries by the label of their group."""
SIDE_DOORS = (
    NavigationEntry("Notices", NOTICES_URL, "bell"),
    NavigationEntry("Team", "/team", "team"),
    NavigationEntry("Settings", "/settings", "settings"),
    NavigationEntry("Documentation", "/docs/", "docs"),
)


def wants_block(request: Request) -> bool:
    """Whether htmx swaps a part of the page. Never when it restores one from the history."""
    headers = request.headers
    is_whole = "true" in (headers.get("hx-boosted"), headers.get("hx-history-restore-request"))
    return headers.get("hx-request") == "true" and headers.get("hx-request-type") != "full" and not is_whole


def page(
    request: Request, template: str, context: object, *, block: str | None = None, status: int = 200
) -> HTMLResponse:
    """Render a page, or its `block` if htmx requests a part. `context` is a mapping or a dataclass."""
    if block and wants_block(request):
        html = render_block(request, template, block, context)
    else:
        html = templates().get_template(template).render(_variables(request, context))
    response = HTMLResponse(html, status_code=status, headers={"Vary": "HX-Request, HX-Request-Type"})
    for name in {NOTICE_COOKIE, UNDO_COOKIE} & request.cookies.keys():
        response.delete_cookie(name, path="/")
    return response


def render_block(request: Request, template: str, block: str, context: object) -> str:
    """Render one block of a page for a live stream or a partial response."""
    loaded = templates().get_template(template)
    return "".join(loaded.blocks[block](loaded.new_context(_variables(request, context))))


def see_other(url: str, notice: str = "", *, undo: str = "") -> Response:
    """Redirect after a change and show `notice` on that page. htmx gets a client-side redirect.

    `undo`: the address that undoes the change, `/deletions/ID/undo`; the notice then has a button for it.
    """
    response = RedirectResponse(url, status_code=303)
    for name, value in ((NOTICE_COOKIE, quote(notice[:300])), (UNDO_COOKIE, undo)):
        if value:
            response.set_cookie(name, value, max_age=60, httponly=True, samesite="lax", path="/")
    return response


def _variables(request: Request, context: object) -> dict[str, object]:
    """Return what `base.html` needs on every page, and the page's own context."""
    if not isinstance(context, Mapping):
        context = {field.name: getattr(context, field.name) for field in fields(context)}  # type: ignore[arg-type]
    actor: Actor | None = getattr(request.state, "actor", None)
    return {
        "actor": actor,
        "csrf_token": actor.csrf_token if actor else "",
        "navigation": NAVIGATION,
        "side_doors": SIDE_DOORS,
        "docs_url": section_about(request.url.path),
        "notice": unquote(request.cookies.get(NOTICE_COOKIE, "")),
        "notice_undo": undo if _UNDO.fullmatch(undo := request.cookies.get(UNDO_COOKIE, "")) else "",
        "here": request.url.path.removesuffix("/events"),  # a page's stream renders parts of that page
        "path": request.url.path,
        **context,
    }
