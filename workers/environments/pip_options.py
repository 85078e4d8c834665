"""Read pip's configuration files and variables for uv, which reads neither. Standard library only."""

import ast
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

_OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "trusted-host": "--allow-insecure-host",
    "constraint": "--constraints",
}
"""pip's options that take any number of values, and uv's for each of them."""
_LINE = re.compile(r"^(?P<place>:env:|global|install)\.(?P<name>[\w-]+)=(?P<value>.+)$")
_PLACES = ("global", "install", ":env:")
"""A later one wins, as with pip."""
_SEPARATORS = re.compile(r"[\s,]+")


def ask_pip(python: Path | str) -> dict[str, str]:
    """The options by name of this interpreter's pip."""
    command = [str(python), "-m", "pip", "config", "list"]
    return read_options(subprocess.run(command, capture_output=True, text=True, check=False).stdout)


def read_options(listed: str) -> dict[str, str]:
    """The options in what `pip config list` prints."""
    found: dict[tuple[str, str], str] = {}
    for line in listed.splitlines():
        if match := _LINE.match(line):
            found[match["place"], match["name"]] = str(ast.literal_eval(match["value"]))
    return {name: value for place in _PLACES for (at, name), value in found.items() if at == place}


def uv_options(told: Mapping[str, str]) -> list[str]:
    """For uv's command line. All indexes count alike, as they do for pip."""
    options = [part for name, option in _OPTIONS.items() for part in _each(option, told.get(name, ""))]
    return ["--no-config", "--index-strategy", "unsafe-best-match", *options, *(["--no-index"] * ("no-index" in told))]


def uv_variables(told: Mapping[str, str]) -> dict[str, str]:
    """Variables for uv, which must not install its own Python."""
    found = {"UV_PYTHON_DOWNLOADS": "never"}
    if certificate := told.get("cert"):
        found["SSL_CERT_FILE"] = certificate
    if proxy := told.get("proxy"):
        found |= {"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy}
    if seconds := told.get("timeout") or told.get("default-timeout"):
        found["UV_HTTP_TIMEOUT"] = seconds
    return found


def _each(option: str, values: str) -> Iterator[str]:
    for value in filter(None, _SEPARATORS.split(values)):
        yield from (option, value)
