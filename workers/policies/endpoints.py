"""Which addresses a policy's connections may go to, decided where the connection is made, so no DNS trick gets past."""

import ipaddress
import socket
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver


class PrivateAddress(ValueError):
    """The endpoint lies in a private network, which this installation does not allow."""

    def __init__(self, host: str) -> None:
        super().__init__(f"{host}: {self.__doc__}")


def connector(base_url: str, *, allow_private: bool) -> aiohttp.TCPConnector:
    """A pool as wide as the engine asks; with the rule it refuses private addresses before any byte leaves."""
    if allow_private:
        return aiohttp.TCPConnector(limit=0, ttl_dns_cache=60)
    host = urlsplit(base_url).hostname or ""
    if _is_literal(host) and not _is_public(host):
        raise PrivateAddress(host)
    return aiohttp.TCPConnector(limit=0, resolver=_PublicResolver())


class _PublicResolver(AbstractResolver):
    def __init__(self) -> None:
        self._resolver = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        if not all(_is_public(result["host"]) for result in found):
            raise PrivateAddress(host)
        return found

    async def close(self) -> None:
        await self._resolver.close()


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_public(address: str) -> bool:
    found = ipaddress.ip_address(address.split("%")[0])
    mapped = getattr(found, "ipv4_mapped", None)
    return bool((mapped or found).is_global)
