"""Where packages come from: what pip is configured to use, for uv and for our own downloads."""

import asyncio
import ssl
from base64 import b64encode
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import aiohttp

from workers.environments.pip_options import ask_pip

_SECONDS = 60.0
_NAMES = ("index-url", "extra-index-url", "find-links")


@dataclass(slots=True)
class IndexAccess:
    """Asks pip once."""

    python: Path
    """The shared runtime's, which is trusted."""
    _options: dict[str, str] | None = None
    _logins: dict[tuple[str, str], str] = field(default_factory=dict)
    _unchecked: set[str] = field(default_factory=set)

    async def options(self) -> dict[str, str]:
        """pip's options by name."""
        if self._options is None:
            options = await asyncio.to_thread(ask_pip, self.python)
            for address in (part for name in _NAMES for part in options.get(name, "").split()):
                parts = urlsplit(address)
                if parts.username is not None:
                    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
                    self._logins[_origin(parts)] = f"Basic {b64encode(login.encode()).decode()}"
            self._unchecked = set(options.get("trusted-host", "").split())
            self._options = options
        return self._options

    def session(self) -> aiohttp.ClientSession:
        options = self._options or {}
        seconds = float(options.get("timeout") or options.get("default-timeout") or _SECONDS)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=seconds, sock_read=seconds)
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=options.get("cert")), limit=32)
        return aiohttp.ClientSession(
            connector=connector, timeout=timeout, trust_env=True, headers={"Accept-Encoding": "identity"}
        )

    def request_options(self, address: str) -> dict[str, Any]:
        """The login of an index counts for its own origin only."""
        parts = urlsplit(address)
        options: dict[str, Any] = {}
        if parts.username is None and (login := self._logins.get(_origin(parts))):
            options["headers"] = {"Authorization": login}
        if proxy := (self._options or {}).get("proxy"):
            options["proxy"] = proxy
        if self._unchecked & {parts.hostname, parts.netloc.rpartition("@")[2]}:
            options["ssl"] = False
        return options


def _origin(parts: SplitResult) -> tuple[str, str]:
    return parts.scheme, parts.netloc.rpartition("@")[2]
