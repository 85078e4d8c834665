"""HTML forms into pydantic models; what is wrong comes back by field name."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar, get_origin

from fastapi import Depends, Request
from pydantic import BaseModel, ValidationError
from starlette.datastructures import FormData, UploadFile

from backend.errors import InvalidInput

M = TypeVar("M", bound=BaseModel)
_MANY = (list, tuple, set, frozenset)


def read_form(model: type[M]) -> Callable[[Request], Awaitable[M]]:
    """A dependency: `form: Annotated[InviteForm, Depends(read_form(InviteForm))]`."""

    async def form_of_request(request: Request) -> M:
        return parse_form(model, await request.form())

    return form_of_request


def parse_form(model: type[M], form: FormData) -> M:
    """An empty field counts as absent where the model has a default, because browsers send empty fields."""
    values: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        key = field.alias or name
        sent = [value for value in form.getlist(key) if not _is_empty(value)]
        if get_origin(field.annotation) in _MANY:
            values[key] = sent
        elif sent:
            values[key] = sent[-1]
        elif key in form and field.is_required():
            values[key] = ""
    return validate(model, values)


def validate(model: type[M], values: object) -> M:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise InvalidInput(fields=field_messages(error)) from error


def field_messages(error: ValidationError) -> dict[str, str]:
    """One sentence a field, keyed by its dotted path."""
    messages: dict[str, str] = {}
    for item in error.errors(include_url=False, include_context=False, include_input=False):
        where = ".".join(str(part) for part in item["loc"]) or "form"
        text = "Fill this in" if item["type"] == "missing" else item["msg"].removeprefix("Value error, ")
        messages.setdefault(where, text.rstrip(".") + ".")
    return messages


def _is_empty(value: str | UploadFile) -> bool:
    return value.strip() == "" if isinstance(value, str) else not value.filename


async def sent_form(request: Request) -> dict[str, str]:
    """The form as it was sent: the fields of an action are not known beforehand."""
    return {name: value for name, value in (await request.form()).items() if isinstance(value, str)}


SentForm = Annotated[dict[str, str], Depends(sent_form)]
