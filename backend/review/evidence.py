"""A flag's evidence as a page shows it: what to mark, which rollouts show it, curves, and how the detector decides."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backend.operations.ids import parse_id
from backend.web.transcripts import Span

_SHOWN_ELSEWHERE = frozenset({"spans", "excerpt", "rollouts", "series", "title", "formula", "source", "thresholds"})


@dataclass(frozen=True, slots=True)
class Evidence:
    title: str
    """The title of the detector."""
    formula: str
    source: str
    thresholds: list[tuple[str, Any]]
    spans: list[Span]
    quotes: list[str]
    """Texts to mark where no spans are given."""
    rollout_ids: list[uuid.UUID]
    """Examples, the clearest first."""
    curves: list[tuple[str, list[float | None]]]
    facts: list[tuple[str, Any]]
    """Everything else that the detector wrote down."""


def read_evidence(evidence: Mapping[str, Any]) -> Evidence:
    """Read the evidence of any detector. Missing parts are omitted, and unknown ones become facts."""
    spans = [
        Span(item["turn"], item["start"], item["end"], str(item.get("part", "said")), str(item.get("quote", "")))
        for item in _list(evidence.get("spans"))
        if isinstance(item, Mapping) and all(isinstance(item.get(key), int) for key in ("turn", "start", "end"))
    ]
    curves = [
        (name, values)
        for name, values in _items(evidence.get("series"))
        if len(_list(values)) > 1 and all(isinstance(value, int | float | None) for value in values)
    ]
    excerpt = evidence.get("excerpt")
    return Evidence(
        title=str(evidence.get("title") or ""),
        formula=str(evidence.get("formula") or ""),
        source=str(evidence.get("source") or ""),
        thresholds=_items(evidence.get("thresholds")),
        spans=spans,
        quotes=[excerpt] if isinstance(excerpt, str) and not spans else [],
        rollout_ids=[id for item in _list(evidence.get("rollouts")) if (id := parse_id(str(item)))],
        curves=curves,
        facts=[(name, _fact(value)) for name, value in evidence.items() if name not in _SHOWN_ELSEWHERE],
    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _items(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, Mapping) else []


def _fact(value: Any) -> Any:
    """A window reads as `12 – 31`; numbers are rounded; structures stay."""
    if isinstance(value, list) and len(value) == 2 and all(isinstance(item, int) for item in value):
        return f"{value[0]} – {value[1]}"
    return round(value, 4) if isinstance(value, float) else value
