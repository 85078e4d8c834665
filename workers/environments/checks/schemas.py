"""Is what the environment shows what it declares to show? The schema comes from foreign code: only its form is read."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from workers.environments.checks.base import Check, Finding, clipped, failed, listed, passed, warned
from workers.environments.checks.subject import Subject
from workers.environments.client import Observation

SAMPLES = 8
MAX_DEPTH = 6
MAX_ITEMS = 50
"""Of a list, that are looked at."""
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}


async def _schema(subject: Subject) -> Finding:
    schema = subject.server.observation_schema
    declared = set(schema.get("properties", {}))
    if not declared:
        return warned("The server declares no fields of its observation.")
    samples = (await subject.completed("random"))[: subject.replays(SAMPLES)]
    episodes = [await subject.alone(rollout) for rollout in samples]
    answers = [answer for episode in episodes for answer in episode]
    for number, answer in ((number, answer) for episode in episodes for number, answer in enumerate(episode)):
        if problem := next(_problems(schema, answer, is_opening=number == 0), None):
            return failed(f"An observation is not what its class declares: {problem}.", samples, schema=schema)
    if extra := sorted({name for answer in answers for name in answer.fields} - declared):
        return warned(f"Sent, but not declared by the observation's class: {listed(extra)}.", samples)
    return passed(
        f"{len(answers)} observations of {len(samples)} episodes have the declared fields and types:"
        f" {listed(sorted(declared - {'metadata', 'done', 'reward'}), 12)}."
    )


def _problems(schema: Mapping[str, Any], answer: Observation, *, is_opening: bool) -> Iterator[str]:
    """A reset may answer with a class of its own, as MCP-style packages do: it need not have what a step's has."""
    ours = {"metadata", "done", "reward"}
    fields = {name: value for name, value in schema.get("properties", {}).items() if name not in ours}
    for name in schema.get("required", []):
        if name in fields and name not in answer.fields and not is_opening:
            yield f"`{name}` is missing"
    for name, found in fields.items():
        if name in answer.fields and not fits(found, answer.fields[name], schema):
            yield f"`{name}` is {clipped(answer.fields[name])}, not {_told(found)}"


def fits(schema: Any, value: Any, root: Mapping[str, Any], depth: int = 0) -> bool:
    """By type, choice and enum; what cannot be told so fits."""
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return True
    if isinstance(reference := schema.get("$ref"), str):
        return fits(root.get("$defs", {}).get(reference.rpartition("/")[2]), value, root, depth + 1)
    if isinstance(branches := schema.get("anyOf"), list):
        return any(fits(branch, value, root, depth + 1) for branch in branches)
    if isinstance(options := schema.get("enum"), list):
        return value in options
    if not _is_of(schema.get("type"), value):
        return False
    if isinstance(value, list):
        return all(fits(schema.get("items"), item, root, depth + 1) for item in itertools.islice(value, MAX_ITEMS))
    if isinstance(value, dict):
        inner = schema.get("properties", {})
        return all(fits(inner.get(name), item, root, depth + 1) for name, item in value.items())
    return True


def _is_of(kind: Any, value: Any) -> bool:
    if not isinstance(kind, str) or kind not in _TYPES:
        return True
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES[kind])


def _told(schema: Mapping[str, Any]) -> str:
    if isinstance(branches := schema.get("anyOf"), list):
        return " or ".join(_told(branch) for branch in branches)
    return str(schema.get("type") or schema.get("enum") or "what is declared")


SCHEMA = Check(
    "observation_schema",
    "Every observation has the fields and types that its class declares.",
    _schema,
    needs=("steps_and_ends",),
)
