"""Markdown of authors and model cards as HTML that carries nothing foreign: no raw HTML, no images, web links only."""

import re
from functools import lru_cache

from markdown_it import MarkdownIt
from markupsafe import Markup

MAX_TEXT = 200_000
"""Characters; a longer text is cut."""

_FRONT_MATTER = re.compile(r"\A---\n.*?\n---\s*\n", re.DOTALL)
"""What model hubs read of a README; no words for a person."""


@lru_cache(maxsize=1)
def _renderer() -> MarkdownIt:
    # html=False escapes raw HTML; an image would be a request that leaves the machine
    renderer = MarkdownIt("commonmark", {"html": False, "maxNesting": 20}).enable("table").disable("image")
    renderer.validateLink = lambda url: url.startswith(("https://", "http://", "#"))  # type: ignore[method-assign]
    return renderer


def markdown(text: str) -> Markup:
    """Safe to place in a page as it is."""
    return Markup(_renderer().render(_FRONT_MATTER.sub("", text[:MAX_TEXT], count=1)))
