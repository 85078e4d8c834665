"""Where a person lands who opens the address of a form's action: by reload, from the history, or typed by hand."""

from collections.abc import Iterable

from fastapi import Request
from starlette.routing import compile_path

_PLACES = {
    "/training": "/runs?kind=training",
    "/training/preflights": "/training/new",
    "/evaluations": "/runs?kind=evaluation",
    "/exports": "/checkpoints",
    "/tokens": "/me",
}
"""Pages for addresses that have no page above them."""


def page_above(request: Request, *, is_id_malformed: bool = False) -> str | None:
    """The page to show instead of one that only takes forms; None where the method is refused for good reason.

    `is_id_malformed`: the address was read as a page of something with this id, as `/review/undo` is. It is a form's
    only if the form's address ends in that very word.
    """
    address = request.url.path
    if request.method not in {"GET", "HEAD"} or address.startswith("/api/"):
        return None
    pages, forms = _pages_and_forms(request)
    for path in forms:
        pattern, _, _ = compile_path(path)
        if is_id_malformed and path.endswith("}"):
            continue
        if found := pattern.match(address):
            return nearest_page(path, pages).format(**found.groupdict())
    return None


def nearest_page(path: str, pages: Iterable[str]) -> str:
    """The template of the nearest page above this one's; the overview in the end."""
    known = set(pages)
    while path:
        if path in _PLACES:
            return _PLACES[path]
        if path in known:
            return path
        path = path.rpartition("/")[0]
    return "/"


def _pages_and_forms(request: Request) -> tuple[set[str], set[str]]:
    from backend.web.routing import guarded_routes

    routes = [(path, methods) for path, methods, _ in guarded_routes(request.app)]
    pages = {path for path, methods in routes if "GET" in methods}
    return pages, {path for path, _ in routes} - pages
