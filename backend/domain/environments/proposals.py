"""Propose a `proctor:` block for a foreign package from its import report. Its author completes it."""

import re
from collections.abc import Mapping

import yaml

from backend.domain.environments.import_report import ImportReport
from backend.domain.text import JsonObject

_FREE_TEXT = {"message", "text", "answer", "response", "reply", "content", "llm_response", "query"}
_LEGAL = ("legal", "valid", "available", "possible", "allowed")
_LONG_FIELD = 1_500
"""Characters of a field above which the proposed prompt omits it."""
_COLUMN = re.compile(r"^[a-z][a-z0-9_]{0,39}$")
_FIELD = re.compile(r"^[A-Za-z_]\w*$")
_TOOL_RESULT = """\
{% if error is defined and error %}{{ error | tojson }}
{%- elif result is defined and result is mapping and result.data is defined %}{{ result.data }}
{%- elif result is defined %}{{ result | tojson }}
{%- elif observation %}{{ observation | tojson }}
{%- else %}Begin.{% endif %}"""


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as a block."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def propose(report: ImportReport, columns_from: str | None = None) -> str:
    """Return the block as YAML. `columns_from`: the dictionary in the observation that holds the reward's parts."""
    adapter, played = report.adapter, report.played
    if adapter.get("columns"):
        rewards = {str(name): float(weight) for name, weight in adapter["columns"].items()}
    else:
        names = report.columns
        if columns_from:
            names = next((found.names for found in report.breakdowns if found.path == columns_from), [])
        rewards = dict.fromkeys([name for name in names if _COLUMN.match(name)], 1.0) or {"reward": 1.0}
    turns = adapter.get("max_turns")
    if not isinstance(turns, int) or turns < 1:
        turns = 30 if played.ended < max(1, played.episodes) else max(1, 2 * played.longest)
    turns = 1 if played.ended and played.longest <= 1 else min(turns, 200)
    step_seconds = max(10.0, round(played.step_milliseconds / 100, 1))
    tasks: dict[str, int | bool] = {"train": 1000, "heldout": 200}
    if isinstance(rows := adapter.get("tasks"), Mapping):
        tasks = {split: max(1, int(rows.get(split, 1))) for split in ("train", "heldout")}
        tasks |= {"grouped": True} if adapter.get("group_columns") else {}
    action, instructions = _action(report)
    if adapter:
        system = str(adapter.get("system") or "")
        system = system if system.strip() else "You are a helpful assistant."
    else:
        about = " ".join(report.description.split())
        first = f"You act in the environment {report.name}." + (f" {about}" if about else "")
        system = f"{first}\n{instructions}".strip()
    block = {
        "agent": {"system": system, "observation": _observation(report), "action": action, "on_unparsable": "retry"},
        **({"columns_from": columns_from} if columns_from else {}),
        "rewards": rewards,
        "episode": {
            "max_turns": turns,
            "step_timeout_seconds": min(step_seconds, 600.0),
            "episode_timeout_seconds": min(max(120.0, step_seconds * turns), 3600.0),
            "max_tokens_per_turn": 512,
        },
        "tasks": tasks,
        "resources": {
            "memory_mb": 2048 if adapter else 1024 if report.own_environment else 512,
            "sessions": max(1, min(report.sessions, 64)),
        },
    }
    return yaml.dump({"proctor": block}, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def _observation(report: ImportReport) -> str:
    if report.adapter:
        return "{{ text }}"
    names = [name for name in report.opening if _FIELD.match(name) and name != "observation"]
    if _is_mcp(report):
        later = [name for name in report.after_step if _FIELD.match(name)]
        if "result" in later:
            return _TOOL_RESULT
        names = later or names
    if not names:
        return "{{ observation | tojson }}"
    short = [name for name in names if len(str(report.opening.get(name))) <= _LONG_FIELD] or names
    templates = {
        name: f"{{{{ {name} | tojson }}}}" if isinstance(report.opening.get(name), dict | list) else f"{{{{ {name} }}}}"
        for name in short
    }
    if len(short) == 1:
        return templates[short[0]]
    return "\n".join(f"{name}: {template}" for name, template in templates.items())


def _action(report: ImportReport) -> tuple[JsonObject, str]:
    """Propose the action's format and the instructions for it."""
    if report.adapter:
        if not report.adapter.get("tools") and not report.opening.get("tools"):
            return {"format": "text", "field": "text"}, ""
        return {"format": "tool", "field": "tool", "arguments": "arguments", "tools": "tools", "text": "text"}, ""
    if _is_mcp(report):
        tools = []
        for tool in report.tools:
            schema = tool.get("input_schema") or tool.get("inputSchema") or tool.get("parameters")
            entry = {"name": str(tool.get("name")), "description": str(tool.get("description") or "")}
            tools.append({**entry, "parameters": schema if isinstance(schema, dict) else {"type": "object"}})
        names: JsonObject = {"format": "tool", "field": "tool_name", "arguments": "arguments", "tools": tools}
        return {**names, "extra": {"type": "call_tool"}}, "Act by calling tools."
    fields = _fields(report.action_schema)
    required = [name for name in fields if name in (report.action_schema.get("required") or [])] or list(fields)[:1]
    if len(required) != 1 or fields[required[0]].get("type") not in {"string", "integer", "number"}:
        described = "; ".join(f"`{name}`{_description(field)}" for name, field in fields.items())
        return {"format": "json"}, f"Reply with one JSON object and nothing else. Its fields: {described}."
    [name] = required
    field, description = fields[name], _description(fields[name])
    if field["type"] == "string" and name.lower() in _FREE_TEXT and not field.get("enum"):
        return {"format": "text", "field": name}, f"Your whole reply is taken as the `{name}`{description}."
    tag = re.sub(r"[^a-z0-9_-]", "", name.lower().removesuffix("_id")) or "action"
    tag = tag if tag[0].isalpha() else "action"
    spec = {"format": "tag", "tag": tag, "field": name}
    if field["type"] != "string":
        spec["type"] = field["type"]
    for observed, value in report.opening.items():
        if observed.lower().startswith(_LEGAL) and isinstance(value, list) and value:
            spec["choices"] = observed
            break
    return spec, f"Reply with <{tag}>…</{tag}> around the `{name}`{description}, exactly once."


def _is_mcp(report: ImportReport) -> bool:
    return {"tool_name", "arguments"} <= set(_fields(report.action_schema)) and bool(report.tools)


def _fields(schema: JsonObject) -> dict[str, JsonObject]:
    """Return the action's fields with references resolved."""
    properties = schema.get("properties")
    fields = {}
    for name, field in properties.items() if isinstance(properties, dict) else ():
        if name == "metadata":
            continue
        field = field if isinstance(field, dict) else {}
        if isinstance(reference := field.get("$ref"), str):
            target = (schema.get("$defs") or {}).get(reference.rpartition("/")[2])
            own = {key: value for key, value in field.items() if key != "$ref"}
            field = {**(target if isinstance(target, dict) else {}), **own}
        fields[name] = field
    return fields


def _description(field: JsonObject) -> str:
    """Return the description and the options of a field in parentheses; empty if it has none."""
    values = field.get("enum")
    options = f"one of {', '.join(map(str, values))}" if isinstance(values, list) and values else ""
    parts = [" ".join(str(field.get("description") or "").split()).rstrip("."), options]
    text = "; ".join(part for part in parts if part)
    return f" ({text})" if text else ""
