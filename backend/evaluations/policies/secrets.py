"""Keys of model endpoints: encrypted at rest, bound to the base URL that they were entered for, never shown again."""

import base64

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from backend.db.models import Policy
from backend.settings import get_settings


class SecretUnreadable(ValueError):
    """The stored key cannot be decrypted: the installation's secret key or the policy's base URL changed."""


def seal(secret: str, base_url: str) -> bytes:
    return _cipher(base_url).encrypt(secret.encode())


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
    try:
        return _cipher(base_url).decrypt(sealed).decode()
    except InvalidToken as error:
        raise SecretUnreadable(SecretUnreadable.__doc__) from error


def _cipher(base_url: str) -> Fernet:
    """The URL goes into the key: a secret copied to another base URL cannot be opened there."""
    derived = HKDF(SHA256(), 32, salt=None, info=b"policy-secret:" + base_url.encode())
    return Fernet(base64.urlsafe_b64encode(derived.derive(get_settings().secret_key.get_secret_value().encode())))
