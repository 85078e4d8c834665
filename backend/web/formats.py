"""Formats of numbers, times and sizes on pages: the template filters."""

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from backend.domain.deletions import in_words

MISSING = "–"
DECIMALS = 3
WHOLE_FROM = 1000
"""From here on, numbers have no decimals."""
PRECISION = {"decimals": DECIMALS, "whole": WHOLE_FROM, "small": 0.01, "significant": 2, "exponent": 1e-6}
"""The same for `chart.js`. Charts show numbers below `small` with significant digits, because learning rates and losses
get that small, and below `exponent` in powers of ten."""


def number(value: float | None, digits: int = DECIMALS) -> str:
    """`0.412`, `1,234`, `–` for None. Integers have no decimals."""
    if value is None or math.isnan(value):
        return MISSING
    if isinstance(value, int) or WHOLE_FROM <= abs(value) < math.inf:
        return f"{round(value):,}".replace("-", "−")
    return f"{value:,.{digits}f}".replace("-", "−")


def signed(value: float | None, digits: int = DECIMALS) -> str:
    """`+0.120` or `−0.050`: differences and reward columns of a step."""
    if value is None:
        return MISSING
    text = number(value, digits)
    return f"+{text}" if value > 0 else text


def percent(value: float | None, digits: int = 0) -> str:
    return MISSING if value is None else f"{100 * value:.{digits}f}%"


def usd(value: float | None) -> str:
    """`$0.0042`, `$1.30`, `$1,240`: three significant digits."""
    if value is None:
        return MISSING
    if value >= 100:
        return f"${value:,.0f}"
    digits = 2 if value >= 1 or value == 0 else min(8, 2 - math.floor(math.log10(value)))
    return f"${value:.{digits}f}"


def size(value: int | None) -> str:
    """`3.4 MB`"""
    if value is None:
        return MISSING
    amount = float(value)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def duration(value: float | timedelta | None) -> str:
    """`0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    if value is None:
        return MISSING
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for big, name, small, rest_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= big:
            first, rest = whole // big, whole % big // small
            return f"{first} {name} {rest} {rest_name}" if rest else f"{first} {name}"
    return f"{whole} s"


def ago(value: datetime | None, now: datetime | None = None) -> str:
    """`just now`, `5 min ago`, `3 h ago`, `2 d ago`, then the date."""
    if value is None:
        return "never"
    seconds = ((now or datetime.now(UTC)) - value).total_seconds()
    if seconds < 0:
        return f"in {duration(-seconds)}"
    if seconds < 45:
        return "just now"
    for unit, length, limit in (("min", 60, 3600), ("h", 3600, 86400), ("d", 86400, 14 * 86400)):
        if seconds < limit:
            return f"{max(1, round(seconds / length))} {unit} ago"
    return value.strftime("%Y-%m-%d")


def moment(value: datetime | None) -> str:
    """`2026-11-21 14:05:09 UTC`"""
    return MISSING if value is None else value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def short(value: object) -> str:
    """Return the last characters of an id. UUIDv7 start alike."""
    return str(value).replace("-", "")[-8:]


def words(value: object) -> str:
    """`broken_reward` → `broken reward`"""
    return str(value).replace("_", " ")


def pretty_json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def compact_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


_FILTERS: tuple[Callable[..., str], ...] = (
    *(ago, compact_json, duration, in_words, moment, number, percent, pretty_json),
    *(short, signed, size, usd, words),
)
FILTERS = {function.__name__: function for function in _FILTERS}
