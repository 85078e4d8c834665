"""Errors in the fields of a request as sentences for people. Free of the web, because jobs validate too."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from backend.errors import InvalidInput

M = TypeVar("M", bound=BaseModel)
_SENTENCES = {
    "missing": "Fill this in",
    "string_too_short": "Write at least {min_length} characters",
    "string_too_long": "Write at most {max_length} characters",
    "string_pattern_mismatch": "This does not have the required form",
    "int_parsing": "Enter a whole number",
    "int_from_float": "Enter a whole number",
    "int_type": "Enter a whole number",
    "float_parsing": "Enter a number",
    "float_type": "Enter a number",
    "finite_number": "Enter a finite number",
    "greater_than_equal": "Enter {ge} or more",
    "greater_than": "Enter more than {gt}",
    "less_than_equal": "Enter {le} or less",
    "less_than": "Enter less than {lt}",
    "enum": "Choose {expected}",
    "literal_error": "Choose {expected}",
    "uuid_parsing": "This is not an id",
    "too_short": "Choose at least {min_length}",
    "too_long": "Choose at most {max_length}",
}
"""By the type of pydantic's error. Others keep pydantic's own words."""


def validate(model: type[M], values: object) -> M:
    """Raises InvalidInput with one sentence per field, keyed by its dotted path."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise InvalidInput(fields=field_messages(error)) from error


def field_messages(error: ValidationError) -> dict[str, str]:
    messages: dict[str, str] = {}
    for item in error.errors(include_url=False, include_input=False):
        messages.setdefault(".".join(str(part) for part in item["loc"]) or "form", sentence_about(item))
    return messages


def sentence_about(item: Mapping[str, Any]) -> str:
    """Return what is wrong with a value, from an error of pydantic, as a sentence for people."""
    context = item.get("ctx") or {}
    limits = {name: f"{each:.15g}" if isinstance(each, float) else each for name, each in context.items()}
    kind = "missing" if item["type"] == "string_too_short" and limits.get("min_length") == 1 else item["type"]
    text = _SENTENCES[kind].format_map(limits) if kind in _SENTENCES else str(item["msg"]).removeprefix("Value error, ")
    return text.rstrip(".") + "."
