"""What is stored of an episode has bounds: a huge observation is cut, visibly, so that no rollout fills the disk."""

from typing import Any

import orjson

MAX_STORED_BYTES = 65_536
"""Of one observation."""
CUT = "_cut"
"""Key of the mark in a cut observation."""


def bounded_text(text: str, limit: int = MAX_STORED_BYTES) -> str:
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[… {len(text) - limit:,} more characters were cut]"


def bounded_observation(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields themselves when they are small, else a copy whose large values are cut."""
    size = _size(fields)
    if size <= MAX_STORED_BYTES:
        return fields
    budget = MAX_STORED_BYTES // 2
    kept: dict[str, Any] = {CUT: f"cut from {size:,} bytes to at most {MAX_STORED_BYTES:,}"}
    for name, value in fields.items():
        if budget <= 0:
            break
        kept[name[:200]] = value if _size(value) <= budget // 2 else _cut(value, budget // 2)
        budget -= _size(kept[name[:200]])
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
