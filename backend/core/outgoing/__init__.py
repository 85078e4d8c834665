"""Connections to addresses that users choose: which of them this installation makes.

`client` makes HTTP requests under this policy.
"""

import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from backend.domain.addresses import (
    AllowedHost,
    BadHost,
    Reach,
    canonical_host,
    is_allowed,
    port_of,
    reach_of,
    read_allowed_hosts,
)
from backend.settings import Settings, get_settings


class CannotConnect(OSError):
    """No connection is made. The message explains why and what to do."""


class AddressRefused(CannotConnect):
    """An address that this installation does not connect to."""


class HostNotFound(CannotConnect):
    """A host name that cannot be resolved now."""


@dataclass(frozen=True, slots=True)
class Target:
    """A host that was resolved and checked."""

    host: str
    """Canonical: a DNS name or an IP address."""
    port: int
    addresses: tuple[str, ...]
    """Connect to one of these, so that the name cannot lead elsewhere a moment later."""


@dataclass(frozen=True, slots=True)
class OutgoingPolicy:
    """Public addresses are allowed, private ones where `allow_private` is set, others only on the allow list."""

    allow_private: bool
    allowed: tuple[AllowedHost, ...] = ()

    @classmethod
    def only(cls, url: str) -> "OutgoingPolicy":
        """A policy for a server that this process started: its own address, and public ones."""
        parts = urlsplit(url)
        network = ipaddress.ip_network(str(parts.hostname))
        return cls(allow_private=False, allowed=(AllowedHost(network=network, port=port_of(parts)),))

    def resolve(self, host: str, port: int) -> Target:
        """Resolve a host once and check every address. Raises CannotConnect."""
        try:
            name = canonical_host(host)
            found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        except BadHost as error:
            raise AddressRefused(f"{error}.") from error
        except (OSError, UnicodeError) as error:
            raise HostNotFound(f"The host name {host[:100]} cannot be resolved.") from error
        addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
        for address in addresses:
            self.check(name, address, port)
        return Target(name, port, tuple(addresses))

    def check_host(self, host: str, port: int) -> None:
        """Check a host when it is entered: names are resolved only where private networks are refused.

        Raises CannotConnect. The check is repeated when a connection is made.
        """
        try:
            address = ipaddress.ip_address(name := canonical_host(host))
        except BadHost as error:
            raise AddressRefused(f"{error}.") from error
        except ValueError:
            if not self.allow_private:
                self.resolve(name, port)
        else:
            self.check(name, str(address), port)

    def check(self, host: str, address: str, port: int) -> None:
        """Raises AddressRefused when a connection to `address`, to which `host` resolved, is not allowed."""
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError as error:
            raise AddressRefused(f"{address[:100]} is not an IP address.") from error
        reach = reach_of(parsed)
        if reach is Reach.PUBLIC or is_allowed(self.allowed, host, parsed, port):
            return
        if reach is Reach.PRIVATE and self.allow_private:
            return
        entry = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        kind = "in a private network" if reach is Reach.PRIVATE else "a link-local, multicast or metadata address"
        raise AddressRefused(
            f"{host} is {kind}, and this installation does not connect to it. An administrator can allow it: add"
            f" {entry} to PROCTOR_ALLOWED_PRIVATE_HOSTS."
        )


def outgoing_policy(settings: Settings | None = None) -> OutgoingPolicy:
    """Return the policy of an installation, by default this one."""
    settings = settings or get_settings()
    return OutgoingPolicy(settings.private_endpoints_allowed, read_allowed_hosts(settings.allowed_private_hosts))


def connect(host: str, port: int, timeout: float, policy: OutgoingPolicy | None = None) -> socket.socket:
    """Open a TCP connection to the first address that answers. Raises OSError; AddressRefused where not allowed."""
    *others, last = (policy or outgoing_policy()).resolve(host, port).addresses
    for address in others:
        try:
            return socket.create_connection((address, port), timeout)
        except OSError:
            continue
    return socket.create_connection((last, port), timeout)
