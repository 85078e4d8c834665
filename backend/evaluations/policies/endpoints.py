"""Which base URLs a policy may have."""

import ipaddress
import socket
from urllib.parse import urlsplit, urlunsplit

from backend.errors import InvalidInput
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
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise _refused(f"{host} cannot be found: {error}.") from error
    for *_, address in found:
        if not ipaddress.ip_address(str(address[0]).split("%")[0]).is_global:
            raise _refused(f"{host} lies in a private network; an administrator of this server has not allowed that.")


def _refused(message: str) -> InvalidInput:
    return InvalidInput(fields={"base_url": message})
