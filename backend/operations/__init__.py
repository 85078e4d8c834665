"""Operations: what a member of the team can do, each declared once.

A declaration gives the JSON route, the form of a page, the role check and the audit entry; the OpenAPI document that
describes the routes gives the command, the method of the Python client and the tool for agents.
"""

from backend.operations.declaration import (
    Cli,
    Operation,
    Progress,
    Request,
    Response,
    operation,
    operations_of,
    reference,
)

__all__ = ["Cli", "Operation", "Progress", "Request", "Response", "operation", "operations_of", "reference"]
