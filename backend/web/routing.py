"""Default deny: every route requires a role or is public. Addresses of forms and of 0.1 lead to pages."""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from fastapi import FastAPI, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute, iter_route_contexts
from starlette.routing import compile_path

from backend.domain.vocabulary import Role
from backend.web.dependencies import RequireRole

PUBLIC = frozenset({"/healthz", "/livez", "/sign-in", "/links/{secret}", "/shared/{secret}", "/notices/bell"})
"""Routes without a role, in addition to `/static`."""
_PAGES_OF_FORMS = {
    "/training/preflights": "/training/new",
    "/evaluations": "/runs?kind=evaluation",
    "/tokens": "/me",
}
"""Pages for addresses of forms that have no page above them."""
_API = r"(/api/v1|)"
_ID = "([^/]+)"
_MOVED = [
    (re.compile(old), new)
    for old, new in (
        (f"{_API}/judges/?", r"\1/graders?kind=judge"),
        (f"{_API}/questions/?", r"\1/graders?kind=question"),
        (f"{_API}/(?:judges|questions)/{_ID}/(?:asked|tried)/(.+)", r"\1/graders/\2/tries/\3"),
        (f"{_API}/(?:judges|questions)/{_ID}/ask", r"\1/graders/\2/tries"),
        (f"{_API}/(?:judges|questions)/(.+)", r"\1/graders/\2"),
        (f"{_API}/training/lessons(/.*)?", r"\1/training/examples\2"),
        (f"{_API}/runs/{_ID}/(?:judges|questions)", r"\1/runs/\2/graders"),
        (f"{_API}/runs/{_ID}/(?:judges|questions)/{_ID}/(?:judgements|answers)", r"\1/graders/\3/runs/\2/grades"),
        (f"{_API}/runs/{_ID}/questions/{_ID}/outlook", r"\1/graders/\3/runs/\2/estimate"),
        (f"{_API}/runs/{_ID}/questions/{_ID}/try", r"\1/graders/\3/tries"),
        (f"{_API}/runs/{_ID}/(?:judges|questions)/{_ID}/(stop|flags)", r"\1/graders/\3/runs/\2/\4"),
        (f"{_API}/runs/{_ID}/(effort|onset)", r"\1/runs/\2/studies/\3"),
        (f"{_API}/runs/{_ID}/(?:effort|onset)/(.+)", r"\1/studies/\3"),
        (f"{_API}/rollouts/{_ID}/(?:judgements|answers)", r"\1/rollouts/\2/grades"),
        (f"/environments/{_ID}/versions/{_ID}/package.zip", r"/api/v1/environments/\1/versions/\2/files"),
    )
]
"""Addresses of 0.1 that moved with their noun, for pages and the JSON API."""


class UnguardedRoute(RuntimeError):
    """A route requires no role."""


def guarded_routes(app: FastAPI) -> Iterator[tuple[str, frozenset[str], Role | None]]:
    """Yield the path, methods and required role of every route."""
    for context in iter_route_contexts(app.routes):
        if isinstance(context.original_route, APIRoute):
            yield context.path or "", frozenset(context.methods or ()), _role_of(context.dependant)


def refuse_unguarded(app: FastAPI) -> None:
    for path, methods, role in guarded_routes(app):
        if role is None and path not in PUBLIC:
            raise UnguardedRoute(f"{', '.join(sorted(methods))} {path} requires no role")


def _role_of(dependant: Dependant) -> Role | None:
    """Return the highest role that a route or anything it depends on requires."""
    roles = [role for role in map(_role_of, dependant.dependencies) if role]
    if isinstance(dependant.call, RequireRole):
        roles.append(dependant.call.role)
    return max(roles, key=list(Role).index, default=None)


def page_above(request: Request, *, is_id_malformed: bool = False) -> str | None:
    """Return the page to show to a browser that opens the address of a form, by reload or from its history.

    None if the method is rightly refused. `is_id_malformed`: the address, such as `/review/undo`, matched a page with
    an id; it is a form's only if the form's address ends in that very word.
    """
    address = request.url.path
    if request.method not in {"GET", "HEAD"} or address.startswith("/api/"):
        return None
    pages, forms = _pages_and_forms(request.app)
    for path, pattern in forms.items():
        if is_id_malformed and path.endswith("}"):
            continue
        if match := pattern.match(address):
            return nearest_page(path, pages).format(**match.groupdict())
    return None


@lru_cache(maxsize=1)
def _pages_and_forms(app: FastAPI) -> tuple[frozenset[str], Mapping[str, re.Pattern[str]]]:
    """Return the paths of the pages, and the patterns of addresses that only take forms, by path."""
    routes = [(path, methods) for path, methods, _ in guarded_routes(app)]
    pages = frozenset(path for path, methods in routes if "GET" in methods)
    return pages, {path: compile_path(path)[0] for path in {path for path, _ in routes} - pages}


def nearest_page(path: str, pages: Iterable[str]) -> str:
    """Return the template of the nearest page above a path, at last the overview."""
    known = set(pages)
    while path:
        if path in _PAGES_OF_FORMS:
            return _PAGES_OF_FORMS[path]
        if path in known:
            return path
        path = path.rpartition("/")[0]
    return "/"


def new_address(request: Request) -> str | None:
    """Return the current address of a request to an old one, with its query."""
    for old, new in _MOVED:
        if match := old.fullmatch(request.url.path):
            address = match.expand(new)
            if request.method == "GET":  # studies are started at an address each and listed at one
                address = re.sub("/studies/(effort|onset)$", "/studies", address)
            query = request.url.query
            return f"{address}{'&' if '?' in address else '?'}{query}" if query else address
    return None
