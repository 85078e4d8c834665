"""What is stored of an episode has bounds: a huge observation is cut, visibly, so that no rollout fills the disk."""

from typing import Any

import orjson

MAX_STORED_BYTES = 65_536
"""Of one observation."""
MAX_EPISODE_BYTES = 4_000_000
"""Of all observations of an episode."""
LEAST_BYTES = 1_024
"""What an observation keeps when the episode has used up its share."""
CUT = "_cut"
"""Key of the mark in a cut observation."""


def bounded_text(text: str, limit: int = MAX_STORED_BYTES) -> str:
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[… {len(text) - limit:,} more characters were cut]"


class ObservationBudget:
    """What one episode may still put away."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = MAX_EPISODE_BYTES

    def observation(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields themselves when they are small, else a copy whose large values are cut."""
        size, limit = _size(fields), self._limit()
        if size > limit:
            fields = _cut_fields(fields, size, limit)
            size = limit
        self._left -= size
        return fields

    def text(self, text: str) -> str:
        text = bounded_text(text, self._limit())
        self._left -= len(text)
        return text

    def _limit(self) -> int:
        return max(min(MAX_STORED_BYTES, self._left), LEAST_BYTES)


def _cut_fields(fields: dict[str, Any], size: int, limit: int) -> dict[str, Any]:
    budget = limit // 2
    kept: dict[str, Any] = {CUT: f"cut from {size:,} bytes to at most {limit:,}"}
    for name, value in fields.items():
        if budget <= 0:
            break
        kept[name[:200]] = value if _size(value) <= budget // 2 else _cut(value, budget // 2)
        budget -= _size(kept[name[:200]]) + len(name[:200])
    return kept


def _cut(value: Any, limit: int) -> str:
    text = value if isinstance(value, str) else _dump(value).decode()
    return bounded_text(text, max(limit // 4, 64))  # a character has at most four bytes


def _size(value: Any) -> int:
    return len(_dump(value))


def _dump(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # lone surrogates, integers above 64 bits, nesting too deep: rare, so slow is fine
        return repr(value).encode("utf-8", "replace")
