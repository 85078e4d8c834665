"""Network access: hosts and IP addresses, which of them are public, the allow list, and packages with access."""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from urllib.parse import SplitResult

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
NOBODY = "none"

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"(0x[0-9a-f]*|[0-9]+)")
_HOST_AND_PORT = re.compile(r"(?P<host>\[[^\]]+\]|[^:]+):(?P<port>\d{1,5})")
_METADATA = frozenset(
    ipaddress.ip_address(text)
    for text in ("169.254.169.254", "168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254")
)
"""Where clouds serve a machine's credentials, several of them outside the link-local range."""
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""RFC 6052: a DNS64 resolver puts public IPv4 addresses here."""
_EMBEDS_IPV4 = tuple(ipaddress.IPv6Network(text) for text in ("::/96", "::ffff:0:0:0/96", "64:ff9b:1::/48"))
"""IPv4-compatible, IPv4-translated and local-use NAT64 (RFC 8215): the last 32 bits are an IPv4 address."""
_ISATAP = (0x00005EFE, 0x02005EFE)


class Reach(IntEnum):
    """How far an address is reachable. Higher is more dangerous."""

    PUBLIC = 0
    PRIVATE = 1
    """This machine, private networks and every range that is not global unicast."""
    LINK_LOCAL = 2
    """Link-local and multicast addresses and the metadata services of clouds."""


class BadHost(ValueError):
    """A host that is neither a DNS name nor an IP address in its usual notation."""


@dataclass(frozen=True, slots=True)
class AllowedHost:
    """One entry of `PROCTOR_ALLOWED_PRIVATE_HOSTS`. Exactly one of `name` and `network` is set."""

    name: str = ""
    network: Network | None = None
    port: int | None = None
    """None: all ports."""


def canonical_host(text: str) -> str:
    """Return a DNS name in lower-case ASCII without a trailing dot, or an IP address in its usual notation.

    Raises BadHost for zone ids and for the octal, hexadecimal, decimal and shortened IPv4 notations, which programs
    read differently.
    """
    host = text.strip().removeprefix("[").removesuffix("]")
    shown = repr(text[:100])
    if ":" in host:
        if "%" in host:
            raise BadHost(f"{shown} has a zone id; leave it out")
        try:
            return str(ipaddress.IPv6Address(host))
        except ValueError as error:
            raise BadHost(f"{shown} is not an IPv6 address") from error
    if not host.isascii():
        try:
            host = host.encode("idna").decode()
        except UnicodeError as error:
            raise BadHost(f"{shown} is not a host name") from error
    host = host.lower().removesuffix(".")
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError as error:
            raise BadHost(f"{shown} is not an IPv4 address; write it as four decimal numbers") from error
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise BadHost(f"{shown} is not a host name")
    return host


def port_of(parts: SplitResult) -> int:
    """Return the port of an http(s) address. Raises ValueError when it is not a port."""
    return parts.port or (443 if parts.scheme == "https" else 80)


def reach_of(address: Address) -> Reach:
    """Classify an address. An IPv6 address that carries an IPv4 address is at least as dangerous as that one."""
    carried: list[Address] = [address]
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        carried = [address.ipv4_mapped]
    elif isinstance(address, ipaddress.IPv6Address):
        carried += filter(None, (address.sixtofour, *(address.teredo or ())))
        is_embedding = any(address in network for network in (_NAT64, *_EMBEDS_IPV4)) and int(address) > 1
        if is_embedding or (int(address) >> 32) & 0xFFFFFFFF in _ISATAP:
            carried.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    reach = Reach.PUBLIC
    for each in carried:
        if each in _METADATA or each.is_link_local or each.is_multicast or str(each) == "255.255.255.255":
            return Reach.LINK_LOCAL
        if isinstance(each, ipaddress.IPv4Address):
            is_public = each.is_global and not each.is_reserved
        else:
            is_unicast = each in _GLOBAL_UNICAST and each.is_global and not each.sixtofour and not each.teredo
            is_public = is_unicast or each in _NAT64
        reach = reach if is_public else Reach.PRIVATE
    return reach


@lru_cache(maxsize=8)
def read_allowed_hosts(text: str) -> tuple[AllowedHost, ...]:
    """Parse a comma-separated allow list. Raises ValueError with the entry that is wrong."""
    allowed = []
    for entry in filter(None, map(str.strip, text.split(","))):
        rest, port = entry, None
        if match := _HOST_AND_PORT.fullmatch(entry):
            rest, port = match["host"], int(match["port"])
            if not 1 <= port <= 65535:
                raise ValueError(f"{entry!r} has no valid port")
        try:
            allowed.append(AllowedHost(network=ipaddress.ip_network(rest.strip("[]")), port=port))
            continue
        except ValueError as error:
            if "/" in rest:
                raise ValueError(f"{entry!r} is not a network: {error}") from error
        try:
            allowed.append(AllowedHost(name=canonical_host(rest), port=port))
        except BadHost as error:
            raise ValueError(
                f"{error}; write a host, host:port, an IP address or a network such as 10.0.0.0/8"
            ) from error
    return tuple(allowed)


def is_allowed(entries: Sequence[AllowedHost], host: str, address: Address, port: int) -> bool:
    """Return whether an entry allows `address`, to which the canonical `host` resolved."""
    address = getattr(address, "ipv4_mapped", None) or address
    return any(
        entry.port in (None, port) and (entry.name == host if entry.network is None else address in entry.network)
        for entry in entries
    )


@dataclass(frozen=True, slots=True)
class NetworkRule:
    """The operator's setting `PROCTOR_ALLOW_NETWORK`. Otherwise administrators grant access to a package's content."""

    is_closed: bool = False
    """No environment gets network access here, whatever administrators grant."""
    hashes: frozenset[str] = frozenset()
    """Content hashes that need no grant."""

    @staticmethod
    def read(setting: str) -> "NetworkRule":
        words = frozenset(filter(None, setting.replace(",", " ").split()))
        return NetworkRule(NOBODY in words, words - {NOBODY})

    def allows(self, content_hash: str, *, is_granted: bool) -> bool:
        return not self.is_closed and (is_granted or content_hash in self.hashes)
