"""Where this installation may connect to: private networks only where its operator allows them."""

import ipaddress
import socket

from backend.settings import get_settings


class AddressRefused(ValueError):
    """A host that cannot be found, or that lies in a private network where that is not allowed."""


def public_addresses(host: str, port: int) -> list[str]:
    """Where a name leads to. Raises AddressRefused when any of it is private."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise AddressRefused(f"{host} cannot be found: {error}") from error
    addresses = list(dict.fromkeys(str(address[0]).split("%")[0] for *_, address in found))
    if not all(map(_is_public, addresses)):
        raise AddressRefused(f"{host} lies in a private network; an administrator of this server has not allowed that")
    return addresses


def allowed_address(host: str, port: int) -> str:
    """What to connect to for this host: itself, or where private networks are refused an address that was looked at,
    so that the name cannot lead elsewhere a moment later. Raises AddressRefused."""
    return host if get_settings().allow_private_endpoints else public_addresses(host, port)[0]


def _is_public(address: str) -> bool:
    found = ipaddress.ip_address(address)
    mapped = getattr(found, "ipv4_mapped", None)
    return bool((mapped or found).is_global)
