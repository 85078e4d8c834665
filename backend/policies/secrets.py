"""Keys of model endpoints: encrypted at rest, bound to the base URL that they were entered for, never shown again."""

from backend.core import sealing
from backend.core.sealing import SecretUnreadable
from backend.policies.tables import Policy

__all__ = ["SecretUnreadable", "seal", "secret_of", "unseal"]


def seal(secret: str, base_url: str) -> bytes:
    return sealing.seal(secret, _bound_to(base_url))


def secret_of(policy: Policy) -> str | None:
    """The endpoint's key in the clear, for the worker that calls it. None when the policy has none."""
    if policy.secret is None:
        return None
    try:
        return unseal(policy.secret, str(policy.configuration.get("base_url", "")))
    except SecretUnreadable as error:
        raise SecretUnreadable(f"{SecretUnreadable.__doc__} Enter the key of {policy.name} again.") from error


def unseal(sealed: bytes, base_url: str) -> str:
    """Raises SecretUnreadable."""
    return sealing.unseal(sealed, _bound_to(base_url))


def _bound_to(base_url: str) -> str:
    """A key copied to another base URL cannot be opened there."""
    return f"policy-secret:{base_url}"
