"""HTML forms: read them into pydantic models, and describe the fields of a model for `ui.fields`."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_origin

from fastapi import Depends, Request
from pydantic import BaseModel, SecretStr
from starlette.datastructures import FormData

from backend.web.field_messages import validate

M = TypeVar("M", bound=BaseModel)
_MANY = (list, tuple, set, frozenset)


def read_form(model: type[M]) -> Callable[[Request], AsyncIterator[M]]:
    """Return a dependency, `form: Annotated[SignIn, Depends(read_form(SignIn))]`, which closes files at the end."""

    async def form_of_request(request: Request) -> AsyncIterator[M]:
        async with request.form() as form:
            yield parse_form(model, form)

    return form_of_request


def parse_form(model: type[M], form: FormData) -> M:
    """Read a form. An empty field counts as absent if the model has a default, because browsers send empty fields.

    Fields that a model names in `emptied_by_forms` become empty.
    """
    values: dict[str, object] = {}
    for name, field in model.model_fields.items():
        key = field.alias or name
        sent = [value for value in form.getlist(key) if (value.strip() if isinstance(value, str) else value.filename)]
        if get_origin(field.annotation) in _MANY:
            values[key] = sent
        elif sent:
            values[key] = sent[-1]
        elif key in form and (field.is_required() or name in getattr(model, "emptied_by_forms", ())):
            values[key] = ""
    return validate(model, values)


@dataclass(frozen=True, slots=True)
class FormField:
    """One field of a form, derived from the model that reads the form."""

    name: str
    label: str
    hint: str
    kind: str
    """`text`, `textarea`, `number`, `url`, `password`, `checkbox` or `select`."""
    value: object
    is_required: bool
    minimum: float | None
    maximum: float | None
    step: str
    min_length: int | None
    """Characters of a text; the browser asks for them before it sends the form."""
    choices: tuple[str, ...]
    unit: str


def form_fields(model: type[BaseModel], values: Mapping[str, object] | None = None) -> Iterator[FormField]:
    """Yield the form fields of a model: titles become labels, descriptions hints, and limits limits.

    `values` replace the defaults. `json_schema_extra` may set a `form` kind, a `unit`, or `form: "none"` for a field
    that the form does not have.
    """
    document = model.model_json_schema()
    definitions = document.get("$defs", {})
    for name, field in model.model_fields.items():
        schema = _unwrapped(document["properties"][field.alias or name], definitions)
        match schema:
            case {"form": str(kind)}:
                pass
            case _ if field.annotation is SecretStr:
                kind = "password"
            case {"enum": _}:
                kind = "select"
            case {"format": "uri"}:
                kind = "url"
            case {"type": "boolean"}:
                kind = "checkbox"
            case {"type": "integer" | "number"}:
                kind = "number"
            case _:
                kind = "textarea" if schema.get("type") == "array" or schema.get("maxLength", 0) > 300 else "text"
        if kind == "none":
            continue
        value = (values or {}).get(name, schema.get("default"))
        yield FormField(
            name=field.alias or name,
            label=field.title or name.replace("_", " ").capitalize(),
            hint=field.description or "",
            kind=kind,
            value="\n".join(map(str, value)) if isinstance(value, list | tuple) else value,
            is_required=field.is_required(),
            minimum=schema.get("minimum", schema.get("exclusiveMinimum")),
            maximum=schema.get("maximum", schema.get("exclusiveMaximum")),
            step="1" if schema.get("type") == "integer" else "any",
            min_length=schema.get("minLength"),
            choices=tuple(str(each) for each in schema.get("enum", ())),
            unit=str(schema.get("unit", "")),
        )


def _unwrapped(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Follow references, and read `T | null` as T."""
    outer = {key: value for key, value in schema.items() if key not in {"$ref", "anyOf"}}
    if "$ref" in schema:
        return {**definitions[schema["$ref"].rsplit("/", 1)[-1]], **outer}
    options = [option for option in schema.get("anyOf", ()) if option.get("type") != "null"]
    return {**_unwrapped(options[0], definitions), **outer} if options else outer


async def sent_form(request: Request) -> dict[str, str]:
    """Return the text fields of a form whose fields depend on the action."""
    return {name: value for name, value in (await request.form()).items() if isinstance(value, str)}


SentForm = Annotated[dict[str, str], Depends(sent_form)]
