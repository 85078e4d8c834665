"""A form for an action, built from its JSON schema, and the reply that a model would have written for it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from backend.domain.environments.manifest import ActionSpec
from backend.domain.environments.prompts import write_reply
from backend.domain.environments.tools import Tool, ToolsUnusable, read_tools, write_call
from backend.errors import InvalidInput

PREFIX = "field."
"""Form fields of the action are named `field.<name>`."""
MAX_CHOICES = 200


@dataclass(frozen=True, slots=True)
class ActionField:
    """One input of the form."""

    name: str
    kind: Literal["text", "integer", "number", "boolean", "choice", "lines", "json", "call"]
    """lines: a list of texts, one per line. call: a tool, followed by its inputs."""
    hint: str = ""
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    is_required: bool = True
    is_short: bool = False
    """A text of one line."""
    tool: str = ""
    """The tool of an argument; `name` is then `<tool>.<argument>`."""

    @property
    def label(self) -> str:
        return self.name.removeprefix(f"{self.tool}.") if self.tool else self.name


@dataclass(frozen=True, slots=True)
class ActionChoice:
    """One button: a legal value and the reply for it."""

    label: str
    reply: str


def action_fields(
    spec: ActionSpec, schema: Mapping[str, Any], observation: Mapping[str, Any] | None = None
) -> list[ActionField]:
    """Return the inputs: one field for a tag or plain text, all fields for JSON, a tool's arguments for a call.

    `observation`: lists the tools if the manifest does not.
    """
    if spec.format == "tool":
        if isinstance(spec.tools, list):
            tools: Sequence[Tool] = spec.tools
        else:
            try:
                tools = read_tools((observation or {}).get(spec.tools or "") or [])
            except ToolsUnusable:
                tools = ()
        fields = []
        for tool in tools:
            fields.append(ActionField(tool.name, "call", tool.description[:300]))
            needed = [str(name) for name in tool.parameters.get("required") or ()]
            arguments = tool.parameters.get("properties") or {}
            for name in dict.fromkeys([*needed, *arguments]):  # required ones first: a stored schema has no order
                if isinstance(arguments.get(name), Mapping):
                    field = _field(name, _resolved(arguments[name], tool.parameters), name in needed)
                    fields.append(replace(field, name=f"{tool.name}.{name}", tool=tool.name))
        return fields
    properties = schema.get("properties") or {}
    names = [spec.field or ""] if spec.format != "json" else [name for name in properties if name != "metadata"]
    required = set(schema.get("required") or ())
    bare = {"type": spec.type}  # before the schema is known, the manifest is enough
    return [
        _field(name, _resolved(properties.get(name) or bare, schema), spec.format != "json" or name in required)
        for name in names
    ]


def legal_choices(spec: ActionSpec, observation: Mapping[str, Any]) -> list[ActionChoice]:
    """Return the values that the observation lists as legal, if the manifest names such a field."""
    values = observation.get(spec.choices) if spec.choices else None
    if not isinstance(values, list) or not spec.field:
        return []
    if spec.format == "tool":
        choices = []
        for value in [value for value in values[:MAX_CHOICES] if isinstance(value, dict) and "name" in value]:
            arguments = value.get("arguments")
            arguments = arguments if isinstance(arguments, Mapping) else {}
            described = ", ".join(f"{name}={argument}" for name, argument in arguments.items())
            choices.append(
                ActionChoice(f"{value['name']}({described})"[:80], write_call(str(value["name"]), arguments))
            )
        return choices
    plain = [value for value in values if isinstance(value, str | int | float)][:MAX_CHOICES]
    return [ActionChoice(str(value), write_reply(spec, {spec.field: value})) for value in plain]


def reply_of_form(spec: ActionSpec, fields: Sequence[ActionField], sent: Mapping[str, str]) -> str:
    """Write the reply for this action. Raises InvalidInput with a message per field."""
    if spec.format != "tool":
        return write_reply(spec, _values(fields, sent))
    tool = sent.get("tool", "")
    if not any(field.kind == "call" and field.name == tool for field in fields):
        raise InvalidInput(fields={"tool": "Choose one of the tools."})
    arguments = _values([field for field in fields if field.tool == tool], sent)
    return write_reply(spec, {spec.field or "": tool, spec.arguments: arguments})


def _values(fields: Sequence[ActionField], sent: Mapping[str, str]) -> dict[str, Any]:
    action: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    for field in fields:
        text = sent.get(PREFIX + field.name, "")
        is_sent = (
            bool(text.strip()) or field.kind == "boolean" or (field.kind in {"text", "lines"} and field.is_required)
        )
        try:
            if is_sent or (field.kind == "text" and not field.tool):
                match field.kind:
                    case "integer":
                        action[field.label] = int(text)
                    case "number":
                        action[field.label] = float(text)
                    case "boolean":
                        action[field.label] = text in {"true", "on", "1"}
                    case "lines":
                        action[field.label] = [line.strip() for line in text.splitlines() if line.strip()]
                    case "json":
                        action[field.label] = json.loads(text)
                    case _:
                        action[field.label] = text.replace("\r\n", "\n")
            elif field.is_required:
                wrong[PREFIX + field.name] = "Fill this in."
        except (ValueError, RecursionError):
            expected = {"integer": "a whole number", "number": "a number", "json": "JSON"}[field.kind]
            wrong[PREFIX + field.name] = f"This is not {expected}."
    if wrong:
        raise InvalidInput(fields=wrong)
    return action


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Resolve references (`#/$defs/…`) and the null of an optional."""
    for _ in range(8):
        alternatives = [part for part in schema.get("anyOf", ()) if part.get("type") != "null"]
        reference = str(schema.get("$ref", ""))
        if reference.startswith("#/$defs/"):
            schema = (root.get("$defs") or {}).get(reference.removeprefix("#/$defs/"), {})
        elif len(alternatives) == 1:
            schema = {**schema, **alternatives[0], "anyOf": ()}
        else:
            break
    return schema


def _field(name: str, schema: Mapping[str, Any], is_required: bool) -> ActionField:
    hint = str(schema.get("description") or "")[:300]
    options = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    if options and all(isinstance(option, str) for option in options):
        return ActionField(name, "choice", hint, tuple(options[:MAX_CHOICES]), is_required=is_required)
    match schema.get("type"):
        case "integer" | "number" as kind:
            low, high = _number(schema.get("minimum")), _number(schema.get("maximum"))
            return ActionField(name, kind, hint, minimum=low, maximum=high, is_required=is_required)
        case "boolean":
            return ActionField(name, "boolean", hint, is_required=False)
        case "string":
            length = _number(schema.get("maxLength"))
            is_short = length is not None and length <= 200
            return ActionField(name, "text", hint, is_required=is_required, is_short=is_short)
        case "array" if isinstance(items := schema.get("items"), Mapping) and items.get("type") == "string":
            return ActionField(name, "lines", hint, is_required=is_required)
        case _:
            return ActionField(name, "json", hint, is_required=is_required)


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) else None
