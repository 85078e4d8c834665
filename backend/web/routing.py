"""Default deny: every route names the role it needs, or stands in the short public list."""

from collections.abc import Iterator

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute, iter_route_contexts

from backend.domain.vocabulary import Role
from backend.web.dependencies import RequireRole

PUBLIC = frozenset({"/healthz", "/livez", "/sign-in", "/links/{secret}", "/notices/bell"})
"""Answered to anybody; `/static` besides."""


class UnguardedRoute(RuntimeError):
    """A route declares no role."""


def guarded_routes(app: FastAPI) -> Iterator[tuple[str, frozenset[str], Role | None]]:
    """(path, methods, role) of every route."""
    for context in iter_route_contexts(app.routes):
        if isinstance(context.original_route, APIRoute):
            yield context.path or "", frozenset(context.methods or ()), _role_of(context.dependant)


def refuse_unguarded(app: FastAPI) -> None:
    for path, methods, role in guarded_routes(app):
        if role is None and path not in PUBLIC:
            raise UnguardedRoute(f"{', '.join(sorted(methods))} {path} declares no role")


def _role_of(dependant: Dependant) -> Role | None:
    """The highest role asked for by the route or by anything it depends on."""
    roles = [role for role in map(_role_of, dependant.dependencies) if role]
    if isinstance(dependant.call, RequireRole):
        roles.append(dependant.call.role)
    return max(roles, key=lambda role: role.rank, default=None)
