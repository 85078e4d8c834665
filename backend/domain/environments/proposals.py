"""A `proctor:` block proposed for a foreign package, from what its import report saw. Its author completes it."""

import re
from collections.abc import Mapping
from typing import Any

import yaml

from backend.domain.environments.import_report import ImportReport

_FREE_TEXT = {"message", "text", "answer", "response", "reply", "content", "llm_response", "query"}
_LEGAL = ("legal", "valid", "available", "possible", "allowed")
_BIG = 1_500
"""Characters of a field that a policy need not read whole."""
_COLUMN = re.compile(r"^[a-z][a-z0-9_]{0,39}$")
_FIELD = re.compile(r"^[A-Za-z_]\w*$")
_MCP = {"tool_name", "arguments"}
_RESERVED = {"observation"}


class _Text(str):
    """Written as a block, line by line."""


class _Writer(yaml.SafeDumper):
    pass


def _as_block(writer: yaml.SafeDumper, text: _Text) -> yaml.Node:
    style = "|" if "\n" in text else None
    return writer.represent_scalar("tag:yaml.org,2002:str", str(text), style=style)


_Writer.add_representer(_Text, _as_block)


def propose(report: ImportReport, columns_from: str | None = None) -> str:
    """The block as YAML text. `columns_from`: the dictionary in the observation that holds the reward's parts."""
    block: dict[str, Any] = {"agent": _agent(report)}
    if columns_from:
        block["columns_from"] = columns_from
    block["rewards"] = _rewards(report, columns_from)
    block["episode"] = _episode(report)
    block["tasks"] = _tasks(report)
    block["resources"] = {"memory_mb": _memory(report), "sessions": max(1, min(report.sessions, 64))}
    text = yaml.dump({"proctor": block}, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=110)
    return text


# rewards, tasks, limits


def _rewards(report: ImportReport, columns_from: str | None) -> dict[str, float]:
    if report.adapter.get("columns"):
        return {str(name): float(weight) for name, weight in report.adapter["columns"].items()}
    names = report.columns
    if columns_from:
        names = next((found.names for found in report.breakdowns if found.path == columns_from), [])
    fitting = [name for name in names if _COLUMN.match(name)]
    return dict.fromkeys(fitting, 1.0) or {"reward": 1.0}


def _episode(report: ImportReport) -> dict[str, Any]:
    turns = report.adapter.get("max_turns")
    if not isinstance(turns, int) or turns < 1:
        never_ended = report.played.ended < max(1, report.played.episodes)
        turns = 30 if never_ended else max(1, 2 * report.played.longest)
    if report.played.ended and report.played.longest <= 1:
        turns = 1
    step = max(10.0, round(report.played.step_milliseconds / 100, 1))
    return {
        "max_turns": min(turns, 200),
        "step_timeout_seconds": min(step, 600.0),
        "episode_timeout_seconds": min(max(120.0, step * min(turns, 200)), 3600.0),
        "max_tokens_per_turn": 512,
    }


def _tasks(report: ImportReport) -> dict[str, int | bool]:
    rows = report.adapter.get("tasks")
    if not isinstance(rows, Mapping):
        return {"train": 1000, "heldout": 200}
    counts = {split: max(1, int(rows.get(split, 1))) for split in ("train", "heldout")}
    return {**counts, "grouped": True} if report.adapter.get("group_columns") else {**counts}


def _memory(report: ImportReport) -> int:
    if report.adapter:
        return 2048
    return 1024 if report.own_environment else 512


# the agent


def _agent(report: ImportReport) -> dict[str, Any]:
    action, how = _action(report)
    agent: dict[str, Any] = {"system": _Text(_system(report, how)), "observation": _Text(_observation(report))}
    return agent | {"action": action, "on_unparsable": "retry"}


def _system(report: ImportReport, how: str) -> str:
    if report.adapter:
        told = str(report.adapter.get("system") or "")
        return told if told.strip() else "You are a helpful assistant."
    about = " ".join(report.description.split())
    first = f"You act in the environment {report.name}." + (f" {about}" if about else "")
    return f"{first}\n{how}".strip()


def _observation(report: ImportReport) -> str:
    if report.adapter:
        return "{{ text }}"
    names = [name for name in report.opening if _FIELD.match(name) and name not in _RESERVED]
    if _is_mcp(report):
        later = [name for name in report.after_step if _FIELD.match(name)]
        if "result" in later:
            return _TOOL_RESULT
        names = later or names
    if not names:
        return "{{ observation | tojson }}"
    small = [name for name in names if len(str(report.opening.get(name))) <= _BIG] or names
    if len(small) == 1:
        return _shown(small[0], report.opening.get(small[0]))
    return "\n".join(f"{name}: {_shown(name, report.opening.get(name))}" for name in small)


_TOOL_RESULT = """\
{% if error is defined and error %}{{ error | tojson }}
{%- elif result is defined and result is mapping and result.data is defined %}{{ result.data }}
{%- elif result is defined %}{{ result | tojson }}
{%- elif observation %}{{ observation | tojson }}
{%- else %}Begin.{% endif %}"""


def _shown(name: str, value: Any) -> str:
    return f"{{{{ {name} | tojson }}}}" if isinstance(value, dict | list) else f"{{{{ {name} }}}}"


def _action(report: ImportReport) -> tuple[dict[str, Any], str]:
    """Propose the action's format and the instructions for it."""
    if report.adapter:
        return _action_of_adapter(report), ""
    if _is_mcp(report):
        names = {"format": "tool", "field": "tool_name", "arguments": "arguments"}
        return {**names, "tools": _listed(report.tools), "extra": {"type": "call_tool"}}, "Act by calling tools."
    fields = _fields(report.action_schema)
    needed = [name for name in fields if name in (report.action_schema.get("required") or [])] or list(fields)[:1]
    if len(needed) == 1 and (kind := _scalar(fields[needed[0]])):
        return _one_field(report, needed[0], kind)
    told = "; ".join(f"`{name}`{_about(field)}" for name, field in fields.items())
    return {"format": "json"}, f"Reply with one JSON object and nothing else. Its fields: {told}."


def _one_field(report: ImportReport, name: str, kind: str) -> tuple[dict[str, Any], str]:
    field = _fields(report.action_schema)[name]
    if kind == "string" and name.lower() in _FREE_TEXT and not field.get("enum"):
        return {"format": "text", "field": name}, f"Your whole reply is taken as the `{name}`{_about(field)}."
    tag = re.sub(r"[^a-z0-9_-]", "", name.lower().removesuffix("_id")) or "action"
    spec: dict[str, Any] = {"format": "tag", "tag": tag if tag[0].isalpha() else "action", "field": name}
    if kind != "string":
        spec["type"] = kind
    if choices := _choices(report.opening):
        spec["choices"] = choices
    return spec, f"Reply with <{spec['tag']}>…</{spec['tag']}> around the `{name}`{_about(field)}, exactly once."


def _action_of_adapter(report: ImportReport) -> dict[str, Any]:
    if not report.adapter.get("tools") and not report.opening.get("tools"):
        return {"format": "text", "field": "text"}
    return {"format": "tool", "field": "tool", "arguments": "arguments", "tools": "tools", "text": "text"}


def _is_mcp(report: ImportReport) -> bool:
    return set(_fields(report.action_schema)) >= _MCP and bool(report.tools)


def _listed(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """In our spelling: name, description, parameters."""
    listed = []
    for tool in tools:
        schema = tool.get("input_schema") or tool.get("inputSchema") or tool.get("parameters")
        entry = {"name": str(tool.get("name")), "description": str(tool.get("description") or "")}
        listed.append(entry | {"parameters": schema if isinstance(schema, dict) else {"type": "object"}})
    return listed


def _choices(observation: Mapping[str, Any]) -> str | None:
    for name, value in observation.items():
        if name.lower().startswith(_LEGAL) and isinstance(value, list) and value:
            return name
    return None


def _fields(schema: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The action's fields with `$ref` followed."""
    found = schema.get("properties")
    named = found if isinstance(found, dict) else {}
    return {name: _resolved(schema, field) for name, field in named.items() if name != "metadata"}


def _resolved(schema: Mapping[str, Any], field: Any) -> dict[str, Any]:
    if not isinstance(field, dict):
        return {}
    if isinstance(reference := field.get("$ref"), str):
        target = (schema.get("$defs") or {}).get(reference.rpartition("/")[2])
        return {**(target if isinstance(target, dict) else {}), **{k: v for k, v in field.items() if k != "$ref"}}
    return field


def _scalar(field: Mapping[str, Any]) -> str | None:
    kind = field.get("type")
    return kind if kind in {"string", "integer", "number"} else None


def _about(field: Mapping[str, Any]) -> str:
    """What its schema says, in brackets."""
    values = field.get("enum")
    said = f"one of {', '.join(map(str, values))}" if isinstance(values, list) and values else ""
    parts = [" ".join(str(field.get("description") or "").split()).rstrip("."), said]
    told = "; ".join(part for part in parts if part)
    return f" ({told})" if told else ""
