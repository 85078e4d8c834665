"""The OpenAPI document: the declared routes, and the refusals that all of them share."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, Field

_REFERENCE = {"$ref": "#/components/schemas/ErrorResponse"}
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


class ErrorResponse(BaseModel):
    """The body of every error response."""

    error: str = Field(description="Kind of the error, for programs.")
    detail: str = Field(description="What happened, for people.")
    fields: dict[str, str] = Field(default_factory=dict, description="Error messages by field or parameter.")
    incident: str | None = Field(default=None, description="Unexpected errors only: id in the server's log.")


def describe(app: FastAPI) -> dict[str, Any]:
    """Return the document of the app's JSON API, built once."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        schemas = document["components"]["schemas"]
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        schemas["ErrorResponse"] = ErrorResponse.model_json_schema()
        for operations in document["paths"].values():
            for method, operation in operations.items():
                statuses = [401, 403, 504]
                if "requestBody" in operation:
                    statuses += [400, 404, 413, 422]
                elif operation.get("parameters"):
                    statuses += [404, 422]
                if method != "get":
                    statuses.append(409)
                operation["responses"] |= {
                    str(status): {
                        "description": _MEANINGS[status],
                        "content": {"application/json": {"schema": _REFERENCE}},
                    }
                    for status in sorted(statuses)
                }
        app.openapi_schema = document
    return app.openapi_schema
