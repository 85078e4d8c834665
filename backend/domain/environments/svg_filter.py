"""SVG of a foreign package as a picture that can neither run code nor load anything.

The text is parsed as XML without a DTD, and only the allowed elements and attributes are written. Pages then
show it in an `<img>`, in which browsers run no script and load no address.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

MAX_SVG = 200_000
"""Characters."""
MAX_NODES = 5_000
MAX_SVG_DEPTH = 32
_SVG = "http://www.w3.org/2000/svg"
_ELEMENTS = frozenset((
    "svg", "g", "path", "rect", "circle", "ellipse", "line", "polyline", "polygon", "text", "tspan", "title",
    "desc", "defs", "linearGradient", "radialGradient", "stop",
))  # fmt: skip
"""`use`, `pattern` and filters are missing, because they multiply what a browser has to draw."""
_PRESENTATION = frozenset((
    "fill", "fill-opacity", "fill-rule", "stroke", "stroke-width", "stroke-opacity", "stroke-linecap",
    "stroke-linejoin", "stroke-dasharray", "stroke-dashoffset", "stroke-miterlimit", "opacity", "color", "display",
    "visibility", "font-family", "font-size", "font-style", "font-weight", "text-anchor", "dominant-baseline",
    "alignment-baseline", "letter-spacing", "stop-color", "stop-opacity",
))  # fmt: skip
_ATTRIBUTES = _PRESENTATION | frozenset((
    "id", "x", "y", "x1", "y1", "x2", "y2", "cx", "cy", "r", "rx", "ry", "fx", "fy", "dx", "dy", "d", "points",
    "width", "height", "viewBox", "preserveAspectRatio", "transform", "offset", "gradientUnits",
    "gradientTransform", "spreadMethod", "textLength", "lengthAdjust", "rotate", "pathLength", "role", "aria-label",
))  # fmt: skip
_PLAIN_VALUE = re.compile(r"(?!.*(?:url|expression|import|javascript)\b)[^\\<&@]*", re.DOTALL | re.IGNORECASE)
_OWN_GRADIENT = re.compile(r"url\(#[\w-]{1,100}\)")


class SvgInvalid(ValueError):
    """The text is not an SVG picture, or exceeds a limit."""


@dataclass(slots=True)
class _Writer:
    """Writes what is allowed, and remembers the names of everything else."""

    pieces: list[str] = field(default_factory=list)
    removed: dict[str, None] = field(default_factory=dict)
    nodes: int = 0
    depth: int = 0
    ignored_from: int = 0
    """Depth of the element that is skipped with its content; 0: none."""

    def begin(self, name: str, attributes: dict[str, str]) -> None:
        self.nodes += 1 + len(attributes)
        self.depth += 1
        if self.nodes > MAX_NODES:
            raise SvgInvalid(f"it has more than {MAX_NODES:,} elements and attributes")
        if self.depth > MAX_SVG_DEPTH:
            raise SvgInvalid(f"it is nested deeper than {MAX_SVG_DEPTH} levels")
        space, _, local = name.rpartition(" ")
        if self.depth == 1 and (space, local) not in {(_SVG, "svg"), ("", "svg")}:
            raise SvgInvalid("its outermost element is not `svg`")
        if self.ignored_from:
            return
        if space not in {_SVG, ""} or local not in _ELEMENTS:
            self.removed[local[:40]] = None
            self.ignored_from = self.depth
            return
        written = "".join(f" {key}={quoteattr(value)}" for key, value in self._allowed(attributes))
        self.pieces.append(f"<{local}{f' xmlns={quoteattr(_SVG)}' if self.depth == 1 else ''}{written}>")

    def _allowed(self, attributes: dict[str, str]) -> Iterator[tuple[str, str]]:
        style = attributes.pop("style", "")
        given = dict(attributes)
        for declaration in style.split(";"):  # a simple style becomes attributes
            key, _, value = declaration.partition(":")
            if key.strip() in _PRESENTATION:
                given[key.strip()] = value.strip()
            elif key.strip():
                self.removed[f"style {key.strip()[:40]}"] = None
        for key, value in given.items():
            if key in _ATTRIBUTES and (_PLAIN_VALUE.fullmatch(value) or _OWN_GRADIENT.fullmatch(value)):
                yield key, value
            elif key not in {"class", "version"}:
                self.removed[key.rpartition(" ")[2][:40]] = None

    def text(self, text: str) -> None:
        if not self.ignored_from:
            self.pieces.append(escape(text))

    def end(self, name: str) -> None:
        if not self.ignored_from:
            self.pieces.append(f"</{name.rpartition(' ')[2]}>")
        elif self.ignored_from == self.depth:
            self.ignored_from = 0
        self.depth -= 1


def filter_svg(text: str) -> tuple[str, list[str]]:
    """Return the picture with only allowed elements and attributes, and the removed names.

    Raises SvgInvalid.
    """
    if len(text) > MAX_SVG:
        raise SvgInvalid(f"it has {len(text):,} characters; at most {MAX_SVG:,} are shown")
    writer = _Writer()

    def refuse(*_: object) -> None:
        raise SvgInvalid("a document type (`<!DOCTYPE`) is not allowed")  # so there are no entities either

    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler, parser.EndElementHandler = writer.begin, writer.end
    parser.CharacterDataHandler = writer.text
    try:
        parser.Parse(text.strip().encode(errors="replace"), True)
    except expat.ExpatError as error:
        raise SvgInvalid(f"it is not XML: {error}") from error
    return "".join(writer.pieces), list(writer.removed)
