"""Addresses of 0.1 that moved with their noun, for pages and the JSON API."""

import re

from fastapi import Request

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
