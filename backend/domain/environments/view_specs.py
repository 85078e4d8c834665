"""The `view` of a manifest: which parts of an observation pages show as a board, a table, Markdown or a picture."""

import re
from enum import StrEnum
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator, model_validator

from backend.domain.environments.blocks import ManifestBlock, checked_template

MAX_VIEWS = 8
MAX_COLUMNS = 20
_PATH = r"^[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$"
_FIELD = re.compile(_PATH)
Path = Annotated[str, Field(max_length=200, pattern=_PATH)]
"""A field, e.g. `board`, `ticket.lines` or `action.code`."""


class ViewKind(StrEnum):
    MARKDOWN = "markdown"
    TABLE = "table"
    GRID = "grid"
    """A board."""
    SVG = "svg"
    IMAGE = "image"
    TERMINAL = "terminal"
    """Text of a terminal, with ANSI colors."""
    DIFF = "diff"
    TEXT = "text"
    """Preformatted text, e.g. code."""


class Tone(StrEnum):
    """Color of a cell. The theme defines its shade."""

    BLUE = "blue"
    ORANGE = "orange"
    GREEN = "green"
    YELLOW = "yellow"
    RED = "red"
    GRAY = "gray"


_ONLY = {
    "columns": {ViewKind.TABLE},
    "labels": {ViewKind.GRID},
    "tones": {ViewKind.GRID},
    "alt": {ViewKind.IMAGE, ViewKind.SVG},
    "before": {ViewKind.DIFF},
    "after": {ViewKind.DIFF},
}


def is_template(text: str) -> bool:
    """Return whether the text is more than the name of a field."""
    return _FIELD.fullmatch(text) is None


class ViewSpec(ManifestBlock):
    """One view. Its content is a field, or the text of a template."""

    kind: ViewKind
    title: str = Field(default="", max_length=80)
    field: Path | None = None
    """Where the content is. In addition to the observation's fields: `action` (that of the step; null after the reset),
    `opening` (the observation of the reset) and `history` (`{action, observation}` of the last 50 steps)."""
    template: str | None = None
    """A template over the observation's fields that writes the content. A grid or a table is written as JSON."""
    columns: list[tuple[str, str]] | None = Field(default=None, min_length=1, max_length=MAX_COLUMNS)
    """table: fields and headings of the columns, in order. Default: the fields of the first row."""
    labels: dict[str, str] = Field(default={}, max_length=100)
    """grid: text of a cell by its value."""
    tones: dict[str, Tone] = Field(default={}, max_length=100)
    """grid: color of a cell by its value."""
    alt: str = Field(default="", max_length=300)
    """svg, image: description for people who do not see it."""
    before: str | None = None
    """diff: the older text, as a field or a template. Without `before` and `after`, the content is a unified diff."""
    after: str | None = None

    @field_validator("columns", mode="before")
    @classmethod
    def _with_headings(cls, value: object) -> object:
        """Read `[code, departs]`, headed by their names, and `{code: Flight}`. Stored JSON would not keep the order."""
        if isinstance(value, dict):
            return list(value.items())
        return [(each, each) if isinstance(each, str) else each for each in value] if isinstance(value, list) else value

    @field_validator("template", "before", "after")
    @classmethod
    def _renders(cls, text: str | None, info: ValidationInfo) -> str | None:
        return text if text is None or not is_template(text) else checked_template(text, info)

    @model_validator(mode="after")
    def _has_content(self) -> "ViewSpec":
        if wrong := [name for name, kinds in _ONLY.items() if getattr(self, name) and self.kind not in kinds]:
            raise ValueError(f"`{wrong[0]}` does not belong to a view of kind `{self.kind}`")
        pair = (self.before, self.after)
        if any(pair) and not all(pair):
            raise ValueError("a diff needs both `before` and `after`, or neither")
        if sum(map(bool, (self.field, self.template, self.before))) != 1:
            alternative = ", or `before` and `after`" if self.kind is ViewKind.DIFF else ""
            raise ValueError(f"give the content of the view: either `field` or `template`{alternative}")
        return self
