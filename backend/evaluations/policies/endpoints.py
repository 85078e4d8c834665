"""Which base URLs a policy may have."""

from urllib.parse import urlsplit, urlunsplit

from backend.errors import InvalidInput
from backend.outgoing import AddressRefused, public_addresses
from backend.settings import get_settings


def checked_base_url(text: str) -> str:
    """The URL without trailing slash. Raises InvalidInput when it is not http(s), or private where that is refused."""
    try:
        parts = urlsplit(text.strip())
        port = parts.port
    except ValueError as error:
        raise _refused(f"This is not an address: {error}.") from error
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise _refused("An address begins with http:// or https://, for example http://127.0.0.1:11434/v1.")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise _refused("Leave out names, keys and everything after `?` or `#`; the key has a field of its own.")
    if not get_settings().allow_private_endpoints:
        _refuse_private(parts.hostname, port or (443 if parts.scheme == "https" else 80))
    path = parts.path.rstrip("/").removesuffix("/chat/completions").rstrip("/")
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def _refuse_private(host: str, port: int) -> None:
    try:
        public_addresses(host, port)
    except AddressRefused as error:
        raise _refused(f"{error}.") from error


def _refused(message: str) -> InvalidInput:
    return InvalidInput(fields={"base_url": message})
