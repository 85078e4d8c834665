"""A flag's evidence as a page shows it: what to mark, which rollouts show it, curves, and other facts."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backend.operations.ids import parse_id
from backend.web.transcripts import Span

_SHOWN_ELSEWHERE = frozenset({"spans", "excerpt", "rollouts", "series", "title", "formula", "source", "thresholds"})


@dataclass(frozen=True, slots=True)
class Evidence:
    spans: list[Span]
    quotes: list[str]
    """Texts to mark where no spans are given."""
    rollout_ids: list[uuid.UUID]
    """Examples, the clearest first."""
    curves: list[tuple[str, list[float | None]]]
    facts: list[tuple[str, Any]]
    """Everything else that the detector wrote down, then its thresholds."""


def read_evidence(evidence: Mapping[str, Any]) -> Evidence:
    """Read the evidence of any detector. Missing parts are omitted, and unknown ones become facts."""
    found, rollouts = (given if isinstance(given := evidence.get(name), list) else [] for name in ("spans", "rollouts"))
    series, thresholds = (
        given if isinstance(given := evidence.get(name), Mapping) else {} for name in ("series", "thresholds")
    )
    spans = [
        Span(item["turn"], item["start"], item["end"], str(item.get("part", "said")), str(item.get("quote", "")))
        for item in found
        if isinstance(item, Mapping) and all(isinstance(item.get(key), int) for key in ("turn", "start", "end"))
    ]
    curves = [
        (name, values)
        for name, values in series.items()
        if isinstance(values, list)
        and len(values) > 1
        and all(isinstance(value, int | float | None) for value in values)
    ]
    facts = []
    for name, value in evidence.items():
        if name in _SHOWN_ELSEWHERE:
            continue
        if isinstance(value, list) and len(value) == 2 and all(isinstance(item, int) for item in value):
            value = f"{value[0]} – {value[1]}"  # a window
        facts.append((name, round(value, 4) if isinstance(value, float) else value))
    excerpt = evidence.get("excerpt")
    return Evidence(
        spans=spans,
        quotes=[excerpt] if isinstance(excerpt, str) and not spans else [],
        rollout_ids=[id for item in rollouts if (id := parse_id(str(item)))],
        curves=curves,
        facts=[*facts, *thresholds.items()],
    )
