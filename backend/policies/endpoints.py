"""Which base URLs a policy may have."""

from urllib.parse import urlsplit, urlunsplit

from backend.core.outgoing import CannotConnect, outgoing_policy
from backend.domain.addresses import port_of
from backend.errors import InvalidInput


def checked_base_url(text: str) -> str:
    """The URL without trailing slash. Raises InvalidInput when it is not http(s), or private where that is refused."""
    try:
        parts = urlsplit(text.strip())
        port = port_of(parts)
    except ValueError as error:
        raise _refused(f"This is not an address: {error}.") from error
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise _refused("An address begins with http:// or https://, for example http://127.0.0.1:11434/v1.")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise _refused("Leave out names, keys and everything after `?` or `#`; the key has a field of its own.")
    try:
        outgoing_policy().check_host(parts.hostname, port)
    except CannotConnect as error:
        raise _refused(str(error)) from error
    path = parts.path.rstrip("/").removesuffix("/chat/completions").rstrip("/")
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def _refused(message: str) -> InvalidInput:
    return InvalidInput(fields={"base_url": message})
