"""Read pip's configuration files and variables for uv, which reads neither. Standard library only."""

import ast
import re
import subprocess
from collections.abc import Mapping
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
    command = [str(python), "-m", "pip", "config", "list"]
    return read_options(subprocess.run(command, capture_output=True, text=True, check=False).stdout)


def read_options(listed: str) -> dict[str, str]:
    values: dict[tuple[str, str], str] = {}
    for line in listed.splitlines():
        if match := _LINE.match(line):
            values[match["place"], match["name"]] = str(ast.literal_eval(match["value"]))
    return {name: value for place in _PLACES for (at, name), value in values.items() if at == place}


def uv_options(pip_options: Mapping[str, str]) -> list[str]:
    """Options for uv's command line. All indexes have the same priority, as they do for pip."""
    options = ["--no-config", "--index-strategy", "unsafe-best-match"]
    for name, option in _OPTIONS.items():
        for value in filter(None, _SEPARATORS.split(pip_options.get(name, ""))):
            options += [option, value]
    return [*options, "--no-index"] if "no-index" in pip_options else options


def uv_variables(pip_options: Mapping[str, str]) -> dict[str, str]:
    """Variables for uv, which must not install its own Python."""
    variables = {"UV_PYTHON_DOWNLOADS": "never"}
    if certificate := pip_options.get("cert"):
        variables["SSL_CERT_FILE"] = certificate
    if proxy := pip_options.get("proxy"):
        variables |= {"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy}
    if seconds := pip_options.get("timeout") or pip_options.get("default-timeout"):
        variables["UV_HTTP_TIMEOUT"] = seconds
    return variables
