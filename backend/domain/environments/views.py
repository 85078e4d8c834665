"""Observations as pictures, boards and tables: what a manifest's `view` makes of an observation, as data.

Everything here is foreign: the manifest, and the observations. A view selects fields or fills a template of
`backend.domain.templates`; no code of a package runs. The result is data with a kind, bounded in size, which the
web layer turns into HTML itself. A view that cannot be rendered is a `RenderedView` with a `problem`, never an error.
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from rich.ansi import AnsiDecoder
from rich.color import ColorSystem
from rich.style import Style

from backend.domain.environments.diff import DiffLine, diff_lines
from backend.domain.environments.svg_filter import filter_svg
from backend.domain.environments.view_specs import MAX_COLUMNS, Tone, ViewKind, ViewSpec, is_template
from backend.domain.template_values import Budget
from backend.domain.templates import TemplateInvalid, parse_template

MAX_TEXT = 100_000
"""Characters of one view."""
MAX_LINES = 2_000
MAX_HISTORY = 50
"""Steps that a template sees."""
MAX_ROWS = 200
MAX_SIDE = 40
"""Rows and columns of a grid."""
MAX_CELL = 300
"""Characters of a table's cell."""
MAX_DIFF = 400
"""Lines on each side of a diff, because comparing takes quadratic time."""
MAX_IMAGE = 1_000_000
"""Bytes."""
MAX_PIXELS = 4_000_000
VIEW_STEPS, VIEW_WORK = 20_000, 1_000_000
"""Expressions that the template of one view evaluates, and characters that it reads and writes."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]")
_WORD = re.compile(r"\S+")
_TONES = {str(tone): tone for tone in Tone}


@dataclass(frozen=True, slots=True)
class GridCell:
    text: str
    tone: Tone | None = None


@dataclass(frozen=True, slots=True)
class ViewTable:
    headings: list[str]
    """Empty: the first column names the rows."""
    rows: list[list[str]]
    omitted: int = 0
    """Rows that are not shown."""


@dataclass(frozen=True, slots=True)
class Picture:
    address: str
    """`data:…`."""
    width: int | None = None
    height: int | None = None
    removed: Sequence[str] = ()
    """SVG: names of elements and attributes that are not allowed."""


@dataclass(frozen=True, slots=True)
class TextRun:
    """A stretch of a terminal's line in one style."""

    text: str
    classes: str = ""


ViewContent = str | list[list[GridCell]] | ViewTable | Picture | list[list[TextRun]] | list[DiffLine]


@dataclass(frozen=True, slots=True)
class RenderedView:
    kind: ViewKind
    title: str = ""
    content: ViewContent = ""
    alt: str = ""
    problem: str = ""
    """Why there is no content."""


@dataclass(slots=True)
class ViewBudget:
    """What all views of one page may take together, so that no package makes a page slow or large."""

    steps: int = 200_000
    work: int = 8_000_000
    bytes: int = 4_000_000


class _NotShown(ValueError):
    """The view cannot be rendered from this observation."""


@dataclass(frozen=True, slots=True)
class ViewRenderer:
    """Renders the views of one environment version, for one page."""

    specs: Sequence[ViewSpec]
    budget: ViewBudget = field(default_factory=ViewBudget)
    is_lenient: bool = False
    """The views are those of another version: what does not fit is silently not shown."""

    def render(
        self,
        observation: Mapping[str, object],
        action: Mapping[str, object] | None = None,
        opening: Mapping[str, object] | None = None,
        history: Sequence[Mapping[str, object]] = (),
    ) -> list[RenderedView]:
        """Return the views with content for this observation; a view that failed has the reason instead.

        `action` led to it, `opening` is the observation of the reset, `history` the steps up to this one.
        """
        if not self.specs or not observation:
            return []
        past = [
            {"action": step["action"], "observation": step["observation"]}
            for step in history[-MAX_HISTORY:]
            if step.get("action") is not None and step.get("observation")
        ]
        opening = observation if opening is None else opening
        given = {"action": action, "opening": opening, "history": past, **observation, "observation": observation}
        shown = []
        for spec in self.specs:
            try:
                content = self._content(spec, given)
            except (ValueError, RecursionError) as error:
                if not self.is_lenient:
                    problem = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:300]
                    shown.append(RenderedView(spec.kind, spec.title, problem=problem))
                continue
            if content:
                shown.append(RenderedView(spec.kind, spec.title, content, spec.alt))
        return shown

    def _content(self, spec: ViewSpec, given: Mapping[str, object]) -> ViewContent | None:
        if spec.before and spec.after:
            sides = (spec.before, spec.after)
            return self._compare(*(self._fill(s, given) if is_template(s) else _find(given, s) for s in sides))
        value = self._fill(spec.template, given) if spec.template else _find(given, spec.field or "")
        if value is None or value in ("", [], {}):
            return None
        if spec.kind in {ViewKind.GRID, ViewKind.TABLE}:
            if spec.template or (isinstance(value, str) and value.lstrip()[:1] in {"[", "{"}):
                value = _parsed(str(value))
            self._charge(len(str(value)))
            return _grid(value, spec) if spec.kind is ViewKind.GRID else _table(value, spec)
        if not isinstance(value, str):
            if spec.kind in {ViewKind.SVG, ViewKind.IMAGE, ViewKind.TERMINAL}:
                raise _NotShown(f"the content is not text but {_kind(value)}")
            value = json.dumps(value, indent=1, ensure_ascii=False)
        self._charge(len(value))
        if spec.kind is ViewKind.IMAGE:
            return _image(value)
        if spec.kind is ViewKind.SVG:
            if not value.strip():
                return None
            picture, removed = filter_svg(value)
            encoded = base64.b64encode(picture.encode()).decode()
            return Picture(f"data:image/svg+xml;base64,{encoded}", removed=removed)
        if len(value) > MAX_TEXT:
            raise _NotShown(f"it has {len(value):,} characters; a view shows at most {MAX_TEXT:,}")
        text = _CONTROL.sub("", value)
        if not text.strip():
            return None
        if spec.kind is ViewKind.TERMINAL:
            return _terminal(text)
        return _unified(text) if spec.kind is ViewKind.DIFF else text

    def _fill(self, template: str, given: Mapping[str, object]) -> str:
        budget = Budget(max(0, min(VIEW_STEPS, self.budget.steps)), max(0, min(VIEW_WORK, self.budget.work)))
        try:
            return parse_template(template).render(given, budget=budget).strip()
        except TemplateInvalid as error:
            raise _NotShown(f"its template, {error}") from error
        finally:
            self.budget.steps -= budget.max_steps - max(0, budget.steps)
            self.budget.work -= budget.max_work - max(0, budget.work)

    def _charge(self, size: int) -> None:
        if size > self.budget.bytes:
            raise _NotShown("the views of this page are too large together")
        self.budget.bytes -= size

    def _compare(self, before: object, after: object) -> list[DiffLine] | None:
        if not isinstance(before, str) or not isinstance(after, str) or before == after:
            return None
        self._charge(len(before) + len(after))
        sides = [_CONTROL.sub("", text).splitlines() for text in (before, after)]
        if max(map(len, sides)) > MAX_DIFF:
            raise _NotShown(
                f"a diff compares at most {MAX_DIFF} lines; these have {len(sides[0]):,} and {len(sides[1]):,}"
            )
        return list(diff_lines(*sides))


def _find(given: Mapping[str, object], path: str) -> object:
    """Return the value at a path; None if it is missing. A part is a key of a mapping or an index of a list."""
    value: object = given
    for part in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list) and part.isdecimal() and len(part) < 7:
            value = value[int(part)] if int(part) < len(value) else None
        else:
            return None
    return value


def _parsed(text: str) -> object:
    if len(text) > MAX_TEXT:
        raise _NotShown(f"it has {len(text):,} characters; a view shows at most {MAX_TEXT:,}")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _NotShown(f"the text is not JSON: {str(error)[:200]}") from error


def _kind(value: object) -> str:
    names = {dict: "a mapping", list: "a list", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "text")


def _plain(value: object, limit: int = MAX_CELL) -> str:
    """A value as the text of a cell."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = value if isinstance(value, str) else str(value) if isinstance(value, int | float) else _short(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _short(value: object) -> str:
    if isinstance(value, list) and all(isinstance(each, str | int | float) for each in value):
        return ", ".join(str(each) for each in value[:100])
    return json.dumps(value, ensure_ascii=False)[: MAX_CELL + 1]


def _grid(value: object, spec: ViewSpec) -> list[list[GridCell]]:
    """Read rows of cells. Lines of text are rows too: words separated by spaces, or else single characters."""
    if isinstance(value, str):
        lines = [line for line in value.splitlines() if line.strip()]
        has_words = any(" " in line.strip() for line in lines)
        rows: list[object] = [_WORD.findall(line) if has_words else list(line.strip()) for line in lines]
    elif isinstance(value, list):
        rows = [list(row) if isinstance(row, str) else row for row in value[: MAX_SIDE + 1]]
    else:
        raise _NotShown(f"a grid is a list of rows or lines of text, not {_kind(value)}")
    if not all(isinstance(row, list) for row in rows):
        raise _NotShown("each row of a grid is a list of cells")
    if len(rows) > MAX_SIDE or any(len(row) > MAX_SIDE for row in rows if isinstance(row, list)):
        raise _NotShown(f"a grid has at most {MAX_SIDE} rows and columns")

    def cell(value: object) -> GridCell:
        """A value, or `{text, tone}`."""
        if isinstance(value, dict):
            tone = value.get("tone")
            return GridCell(_plain(value.get("text"), 40), _TONES.get(tone) if isinstance(tone, str) else None)
        text = _plain(value, 40)
        return GridCell(spec.labels.get(text, text)[:40], spec.tones.get(text))

    return [[cell(each) for each in row] for row in rows if isinstance(row, list) and row]


def _table(value: object, spec: ViewSpec) -> ViewTable:
    """Read rows: mappings, lists, or one mapping whose keys head the rows."""
    if isinstance(value, dict):
        named = [(heading, value.get(key)) for key, heading in spec.columns] if spec.columns else list(value.items())
        pairs = [[_plain(key), _plain(each)] for key, each in named[:MAX_ROWS]]
        return ViewTable([], pairs, max(0, len(named) - MAX_ROWS))
    if not isinstance(value, list):
        raise _NotShown(f"a table is a list of rows or a mapping, not {_kind(value)}")
    shown, omitted = value[:MAX_ROWS], max(0, len(value) - MAX_ROWS)
    if all(isinstance(row, dict) for row in shown):
        columns = spec.columns or [(str(key), str(key)) for key in islice(shown[0], MAX_COLUMNS)]
        rows = [[_plain(row.get(key)) for key, _ in columns] for row in shown]
        return ViewTable([heading for _, heading in columns], rows, omitted)
    lists = [row if isinstance(row, list) else [row] for row in shown]
    width = min(MAX_COLUMNS, max(map(len, lists)))
    rows = [[_plain(each) for each in row[:width]] + [""] * (width - len(row)) for row in lists]
    return ViewTable([heading for _, heading in spec.columns or ()][:width], rows, omitted)


def _terminal(text: str) -> list[list[TextRun]]:
    lines = text.split("\n")
    if len(lines) > MAX_LINES or text.count("\x1b") > MAX_LINES:
        raise _NotShown(f"a terminal shows at most {MAX_LINES:,} lines and as many changes of style")
    decoder = AnsiDecoder()
    shown = []
    for line in lines:
        decoded = decoder.decode_line(line)
        edges = sorted({edge for span in decoded.spans for edge in (span.start, span.end)})
        parts = [part for part in decoded.divide(edges) if part.plain]
        shown.append([TextRun(part.plain, _classes(part.spans[0].style) if part.spans else "") for part in parts])
    return shown


def _classes(style: Style | str) -> str:
    """Classes of a style: one of the terminal's 16 colors for text and background, and how it is set."""
    if isinstance(style, str):
        return ""
    names = [name for name in ("bold", "dim", "italic", "underline", "strike", "reverse") if getattr(style, name)]
    for prefix, color in (("fg", style.color), ("bg", style.bgcolor)):
        if color is not None and not color.is_default:
            names.append(f"{prefix}-{color.downgrade(ColorSystem.STANDARD).number}")
    return " ".join(names)


def _unified(text: str) -> list[DiffLine]:
    """Read a unified diff as its lines."""
    lines = text.splitlines()
    if len(lines) > MAX_LINES:
        raise _NotShown(f"a diff has at most {MAX_LINES:,} lines; this has {len(lines):,}")
    shown = []
    for line in lines:
        if line.startswith(("+++", "---", "diff ", "index ", "@@")):
            shown.append(DiffLine("gap", line))
        elif line.startswith(("+", "-")):
            shown.append(DiffLine("added" if line[0] == "+" else "removed", line[1:]))
        else:
            shown.append(DiffLine("same", line.removeprefix(" ")))
    return shown


def _image(text: str) -> Picture:
    """Check an image in base64, with or without `data:…;base64,`: its type and its size in bytes and pixels."""
    encoded = text.partition(",")[2] if text.startswith("data:") else text
    if len(encoded) > MAX_IMAGE * 4 // 3 + 4:
        raise _NotShown(f"an image has at most {MAX_IMAGE:,} bytes")
    try:
        content = base64.b64decode("".join(encoded.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise _NotShown("the content is not base64") from error
    kind, width, height = _image_size(content)
    if not 0 < width * height <= MAX_PIXELS:
        raise _NotShown(f"an image has at most {MAX_PIXELS:,} pixels; this has {width:,} × {height:,}")
    return Picture(f"data:image/{kind};base64,{base64.b64encode(content).decode()}", width, height)


def _image_size(content: bytes) -> tuple[str, int, int]:
    """Return the type of an image, its width and its height, from its first bytes."""
    if content[:8] == b"\x89PNG\r\n\x1a\n" and content[12:16] == b"IHDR":
        return "png", int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        match content[12:16]:
            case b"VP8X":
                return "webp", *(1 + int.from_bytes(content[at : at + 3], "little") for at in (24, 27))  # type: ignore[return-value]
            case b"VP8 ":
                return "webp", *(int.from_bytes(content[at : at + 2], "little") & 0x3FFF for at in (26, 28))  # type: ignore[return-value]
            case b"VP8L":
                bits = int.from_bytes(content[21:25], "little")
                return "webp", 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if content[:3] == b"\xff\xd8\xff":
        position = 2
        while position + 9 < len(content) and content[position] == 0xFF:
            marker = content[position + 1]
            if 0xC0 <= marker <= 0xCF and marker not in {0xC4, 0xC8, 0xCC}:  # the frame
                height, width = (int.from_bytes(content[position + at : position + at + 2], "big") for at in (5, 7))
                return "jpeg", width, height
            position += 2 + int.from_bytes(content[position + 2 : position + 4], "big")
    raise _NotShown("the image is not PNG, JPEG or WebP")
