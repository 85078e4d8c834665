"""The browser or script behind a request: its address, and a few words about its device."""

import ipaddress
from dataclasses import dataclass

from fastapi import Request

_BROWSERS = (
    ("Edg", "Edge"),
    ("OPR/", "Opera"),
    ("SamsungBrowser", "Samsung Internet"),
    ("Firefox", "Firefox"),
    ("FxiOS", "Firefox"),
    ("CriOS", "Chrome"),
    ("HeadlessChrome", "Chrome"),
    ("Chrome", "Chrome"),
    ("Safari", "Safari"),
    ("curl/", "curl"),
    ("python-", "Python"),
)
"""What a User-Agent contains, the more specific first: most browsers also name those they descend from."""
_SYSTEMS = (
    ("Android", "Android"),
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Windows", "Windows"),
    ("Mac OS X", "macOS"),
    ("CrOS", "ChromeOS"),
    ("Linux", "Linux"),
)
UNKNOWN_ADDRESS = "unknown"


@dataclass(frozen=True, slots=True)
class Client:
    address: str
    """An IP address, or `unknown` for a Unix socket."""
    device: str
    """For example "Firefox on Linux"."""

    @property
    def network(self) -> str:
        """One client for limits: an IPv4 address, or the /64 network of an IPv6 address, which one customer gets."""
        try:
            address = ipaddress.ip_address(self.address.partition("%")[0])
        except ValueError:
            return self.address
        if isinstance(address, ipaddress.IPv4Address):
            return str(address)
        if address.ipv4_mapped:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))


def client_of(request: Request) -> Client:
    """The address comes from the socket. The server replaces it by X-Forwarded-For only for proxies that it trusts."""
    address = request.client.host if request.client else UNKNOWN_ADDRESS
    return Client(address[:64], describe_device(request.headers.get("user-agent", "")))


def describe_device(user_agent: str) -> str:
    """Only names from the lists above: nothing of the header itself is stored or shown."""
    start = user_agent[:500]
    browser = next((name for part, name in _BROWSERS if part in start), "Unknown browser")
    system = next((name for part, name in _SYSTEMS if part in start), "")
    return f"{browser} on {system}" if system else browser
