"""Secrets of destinations: encrypted, bound to the address that they were entered for, never shown again."""

from typing import Any

from backend.core import sealing
from backend.core.sealing import SecretUnreadable
from backend.domain.notifications.notices import DestinationKind
from backend.notifications.tables import NoticeDestination


def seal(secret: str, kind: DestinationKind, configuration: dict[str, Any]) -> bytes:
    return sealing.seal(secret, _bound_to(kind, configuration))


def secret_of(destination: NoticeDestination) -> str | None:
    """In the clear, for the job that sends. Raises SecretUnreadable."""
    if destination.secret is None:
        return None
    try:
        return sealing.unseal(destination.secret, _bound_to(destination.kind, destination.configuration))
    except SecretUnreadable as error:
        raise SecretUnreadable(f"{SecretUnreadable.__doc__} Enter the secret of {destination.name} again.") from error


def is_same_place(kind: DestinationKind, before: dict[str, Any], after: dict[str, Any]) -> bool:
    """May the stored secret stay?"""
    return _bound_to(kind, before) == _bound_to(kind, after)


def _bound_to(kind: DestinationKind, configuration: dict[str, Any]) -> str:
    if kind is DestinationKind.WEBHOOK:
        return f"webhook:{configuration['url']}"
    return "smtp:{security}:{user}@{host}:{port}".format_map(configuration)
