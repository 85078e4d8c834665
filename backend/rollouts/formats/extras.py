"""What a record holds and a format of others has no place for: it travels beside, so that it can come back whole."""

from collections.abc import Mapping
from typing import Any

from backend.rollouts.formats.streams import Plain

KEY = "proctor"
_NATIVE = frozenset({"messages", "reward"})
_ORDINARY = frozenset({"role", "content", "reasoning"})


def rest_of(record: Plain) -> Plain:
    """All but the conversation and the reward; of the conversation what others would drop."""
    kept = {name: value for name, value in record.items() if name not in _NATIVE}
    if any(message.keys() - _ORDINARY for message in record["messages"]):
        kept["messages"] = record["messages"]
    return kept


def find_rest(value: Any) -> dict[str, Any] | None:
    """What `rest_of` wrote, where a file has it."""
    if isinstance(value, Mapping) and str(value.get("schema", "")).startswith("proctor.rollout/"):
        return dict(value)
    return None
