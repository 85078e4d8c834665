"""A document that needs nothing from elsewhere: pages without what is interactive, in a file that opens offline."""

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from html import escape

import nh3
from markupsafe import Markup
from selectolax.lexbor import LexborHTMLParser

from backend.web.templating import STATIC_FOLDER, templates

_EMPTY_HEADING = re.compile(r"<th( [^<>]*)?>\s*</th>")
_SHEETS = ("tokens", "base", "layout", "components", "pages", "runs", "report", "print")
_ELEMENTS = frozenset(
    (
        *("abbr", "article", "aside", "b", "blockquote", "br", "caption", "code", "col", "colgroup", "dd", "del"),
        *("details", "div", "dl", "dt", "em", "figcaption", "figure", "h1", "h2", "h3", "h4", "h5", "h6", "header"),
        *("hr", "i", "img", "ins", "kbd", "li", "mark", "ol", "p", "pre", "progress", "s", "samp", "section", "small"),
        *("span", "strong", "sub", "summary", "sup", "table", "tbody", "td", "tfoot", "th", "thead", "time", "tr"),
        *("u", "ul"),
        *("svg", "g", "rect", "line", "circle", "ellipse", "polyline", "polygon", "path", "text", "title"),
    )
)
_UNWRAPPED = frozenset({"a", "label"})
"""Their content stays. All other unknown elements are dropped with their content."""
_ATTRIBUTES = frozenset(
    (
        *("alt", "class", "colspan", "datetime", "dir", "height", "id", "lang", "max", "open", "role", "rowspan"),
        *("scope", "start", "tabindex", "title", "value", "width", "aria-label", "aria-hidden", "aria-current"),
        *("cx", "cy", "d", "points", "preserveAspectRatio", "r", "rx", "ry", "text-anchor", "transform", "viewBox"),
        *("x", "x1", "x2", "y", "y1", "y2", "data-change", "data-cited", "data-failed", "data-kind", "data-line"),
        *("data-point", "data-spare"),
        *("data-role", "data-sign", "data-state", "data-tone", "data-tool", "data-wide"),
    )
)
_INTERACTIVE = (
    ".actions, .drop, .export, .crumbs, .pager, .more, .only-links, .transcript-tools, .more-charts, svg.icon, "
    "[hidden], img:not([src^='data:image/'])"
)
"""Parts that only work on the page, and images from elsewhere."""


def without_interaction(html: str) -> Markup:
    """Return the HTML without scripts, forms, buttons, menus and links, and without anything that is loaded."""
    body = LexborHTMLParser(f"<body>{html}").body
    if body is None:
        return Markup()
    for node in body.css(_INTERACTIVE):
        node.decompose()
    for time in body.css("time[title]"):  # "3 hours ago" would soon be wrong
        time.inner_html = escape(time.attributes["title"] or "", quote=False)
    for box in body.css(".table-box"):  # no script lets the keyboard scroll it
        box.attrs["tabindex"] = "0"
    dropped = {node.tag or "" for node in body.css("*")} - _ELEMENTS - _UNWRAPPED
    clean = nh3.clean(
        body.inner_html or "",
        tags=set(_ELEMENTS),
        clean_content_tags=dropped,
        attributes={"*": set(_ATTRIBUTES), "img": {"src"}},
        url_schemes={"data"},
        link_rel=None,
    )
    # a heading of a column of buttons or drawings is empty: no heading, then
    return Markup(_EMPTY_HEADING.sub("<td></td>", clean))


@dataclass(frozen=True, slots=True)
class StyleSheet:
    """The styles of all pages as one text, and the policy that admits nothing else in a document."""

    text: Markup
    policy: str


@lru_cache(maxsize=1)
def style_sheet() -> StyleSheet:
    text = "".join((STATIC_FOLDER / "css" / f"{name}.css").read_text() for name in _SHEETS)
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    return StyleSheet(Markup(text), policy)


def render_part(template: str, block: str, context: Mapping[str, object]) -> Markup:
    """Render a block of a page, without what is interactive."""
    loaded = templates().get_template(template)
    return without_interaction("".join(loaded.blocks[block](loaded.new_context(dict(context)))))
