"""The OpenAPI document: what routes declare, and the refusals that come from one place for all of them."""

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, Field

_REFERENCE = {"$ref": "#/components/schemas/Problem"}
_MEANINGS = {
    400: "The request cannot be read.",
    401: "Not signed in, or the token is not valid.",
    403: "The role or the token does not allow this, or the request came from another site.",
    404: "There is nothing here.",
    409: "The state of the object does not allow this, or someone changed it in the meantime.",
    413: "The body is too large.",
    422: "Some values are not valid; `fields` names them.",
    504: "The database took too long.",
}


class Problem(BaseModel):
    """The body of every refusal."""

    error: str = Field(description="The kind of the error, for programs.")
    detail: str = Field(description="What happened, for people.")
    fields: dict[str, str] = Field(default_factory=dict, description="What is wrong, by field or parameter.")
    incident: str | None = Field(default=None, description="Of an unexpected error: its id in the log.")


def describe(app: FastAPI) -> dict[str, Any]:
    """The document of the app's JSON API; built once."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        schemas = document["components"]["schemas"]
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        schemas["Problem"] = Problem.model_json_schema()
        for operations in document["paths"].values():
            for method, operation in operations.items():
                operation["responses"] |= {str(status): _refusal(status) for status in _refusals(method, operation)}
        app.openapi_schema = document
    return app.openapi_schema


def _refusals(method: str, operation: dict[str, Any]) -> list[int]:
    """The statuses with which an operation may refuse."""
    statuses = [401, 403, 504]
    has_body = "requestBody" in operation
    if has_body or operation.get("parameters"):
        statuses += [404, 422]
    if has_body:
        statuses += [400, 413]
    if method != "get":
        statuses.append(409)
    return sorted(statuses)


def _refusal(status: int) -> dict[str, Any]:
    description = _MEANINGS.get(status, HTTPStatus(status).phrase)
    return {"description": description, "content": {"application/json": {"schema": _REFERENCE}}}
