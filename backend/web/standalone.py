"""A document that needs nothing from elsewhere: pages without what is interactive, in a file that opens offline."""

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from html import escape
from html.parser import HTMLParser

from markupsafe import Markup

from backend.web.templating import STATIC_FOLDER, templates

_SHEETS = ("tokens", "base", "layout", "components", "pages", "runs", "report", "print")
_HTML = frozenset(
    (
        *("abbr", "article", "aside", "b", "blockquote", "br", "caption", "code", "col", "colgroup", "dd", "del"),
        *("details", "div", "dl", "dt", "em", "figcaption", "figure", "h1", "h2", "h3", "h4", "h5", "h6", "header"),
        *("hr", "i", "img", "ins", "kbd", "li", "mark", "ol", "p", "pre", "progress", "s", "samp", "section", "small"),
        *("span", "strong", "sub", "summary", "sup", "table", "tbody", "td", "tfoot", "th", "thead", "time", "tr"),
        *("u", "ul"),
    )
)
_SVG = frozenset({"svg", "g", "rect", "line", "circle", "ellipse", "polyline", "polygon", "path", "text", "title"})
_UNWRAPPED = frozenset({"a", "label"})
"""Their content stays."""
_VOID = frozenset({"br", "col", "hr", "img", "input", "link", "meta", "area", "base", "embed", "source", "wbr"})
_INTERACTIVE = frozenset(
    {"actions", "drop", "export", "crumbs", "pager", "more", "only-links", "transcript-tools", "more-charts"}
)
"""Classes of parts that only work on the page."""
_EMPTY_HEADING = re.compile(r"<th( [^<>]*)?>\s*</th>")
_ATTRIBUTES = {
    each.lower(): each
    for each in (
        *("alt", "class", "colspan", "datetime", "dir", "height", "id", "lang", "max", "open", "role", "rowspan"),
        *("scope", "start", "tabindex", "title", "value", "width", "aria-label", "aria-hidden", "aria-current"),
        *("cx", "cy", "d", "points", "preserveAspectRatio", "r", "rx", "ry", "text-anchor", "transform", "viewBox"),
        *("x", "x1", "x2", "y", "y1", "y2", "data-change", "data-cited", "data-failed", "data-kind", "data-line"),
        *("data-point", "data-spare"),
        *("data-role", "data-sign", "data-state", "data-tone", "data-tool", "data-wide"),
    )
}
"""Spelling by name: SVG is sensitive to case, and the parser is not."""


@dataclass
class _Stripper(HTMLParser):
    """Copies known elements and attributes and drops all others, so that nothing is loaded, sent or executed."""

    parts: list[str] = field(default_factory=list)
    open_elements: list[tuple[str, bool]] = field(default_factory=list)
    """Names of open elements, and whether each was copied."""
    _dropped_at: int | None = None
    """Number of open elements above the dropped one that is being skipped."""

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        is_known = tag in _HTML or tag in _SVG
        is_left = _INTERACTIVE.isdisjoint(given.get("class", "").split()) and "hidden" not in given
        if tag == "img":
            is_known = given.get("src", "").startswith("data:image/")
        if tag == "svg" and "icon" in given.get("class", "").split():
            is_known = False
        is_copied = is_known and is_left and self._dropped_at is None
        if is_copied:
            kept = {_ATTRIBUTES[name]: value for name, value in given.items() if name in _ATTRIBUTES}
            if tag == "img":
                kept["src"] = given["src"]
            if given.get("class") == "table-box":
                kept["tabindex"] = "0"  # no script lets the keyboard scroll it
            written = "".join(f' {name}="{escape(value)}"' for name, value in kept.items())
            self.parts.append(f"<{tag}{written}>")
            if tag == "time" and given.get("title"):  # "3 hours ago" would soon be wrong
                self.parts.append(escape(given["title"], quote=False))
                self._dropped_at = len(self.open_elements)
        if tag in _VOID:
            return
        if self._dropped_at is None and not is_copied and not (tag in _UNWRAPPED and is_left):
            self._dropped_at = len(self.open_elements)
        self.open_elements.append((tag, is_copied))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        names = [name for name, _ in self.open_elements]
        if tag not in names:
            return
        place = len(names) - 1 - names[::-1].index(tag)
        for name, is_copied in reversed(self.open_elements[place:]):
            if is_copied:
                self.parts.append(f"</{name}>")
        del self.open_elements[place:]
        if self._dropped_at is not None and len(self.open_elements) <= self._dropped_at:
            self._dropped_at = None

    def handle_data(self, data: str) -> None:
        if self._dropped_at is None:
            self.parts.append(escape(data, quote=False))


def without_interaction(html: str) -> Markup:
    """Return the HTML without scripts, forms, buttons, menus and links, and without anything that is loaded."""
    stripper = _Stripper()
    stripper.feed(html)
    stripper.close()
    while stripper.open_elements:
        stripper.handle_endtag(stripper.open_elements[-1][0])
    # a heading of a column of buttons or drawings is empty: no heading, then
    return Markup(_EMPTY_HEADING.sub("<td></td>", "".join(stripper.parts)))


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
