"""Secrets at rest: encrypted with the installation's key and bound to their purpose."""

import base64

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from backend.settings import get_settings


class SecretUnreadable(ValueError):
    """The stored secret cannot be decrypted: the installation's secret key or the secret's purpose changed."""


def seal(secret: str, bound_to: str) -> bytes:
    return _cipher(bound_to).encrypt(secret.encode())


def unseal(sealed: bytes, bound_to: str) -> str:
    """Raises SecretUnreadable."""
    try:
        return _cipher(bound_to).decrypt(sealed).decode()
    except InvalidToken as error:
        raise SecretUnreadable(SecretUnreadable.__doc__) from error


def _cipher(bound_to: str) -> Fernet:
    """Derive the key from the purpose too: a secret copied elsewhere cannot be decrypted there."""
    derived = HKDF(SHA256(), 32, salt=None, info=bound_to.encode())
    return Fernet(base64.urlsafe_b64encode(derived.derive(get_settings().secret_key.get_secret_value().encode())))
