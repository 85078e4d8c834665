"""Install pinned packages into a virtual environment and verify the SHA-256 of each file.

    python scripts/install.py PYTHON --flavour cpu --extra embedded --group dev --editable .
    python scripts/install.py PYTHON --pins constraints-runtime.txt openenv

First resolve which of the pinned releases this interpreter needs, then install exactly those with their hashes. A
release that is not pinned, or a file whose hash is not listed, stops the installation. uv does the work; pip does it
where uv cannot run, under the same rules.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.dependencies import FLAVOURS, ROOT, Pin, direct_requirements, normalized, read_pins
from workers.environments.pip_options import ask_pip, uv_options, uv_variables

SLOW_FORMATS = frozenset({"rfc3987-syntax", "uri-template"})
"""Optional checkers of formats that `jsonschema` imports wherever they are installed, 1.3 s of every start. A tool for
development asks for them, and nothing here uses these formats."""


class CannotInstall(RuntimeError):
    """The installation stops. The message has the reason and a remedy."""


@dataclass(frozen=True)
class Release:
    """One release that the resolver chose."""

    name: str
    version: str

    @property
    def line(self) -> str:
        return f"{self.name}=={self.version}"


def main(arguments: Sequence[str]) -> int:
    options = _parse(arguments)
    flavour = FLAVOURS[options.flavour] if options.flavour else None
    pins_file = Path(options.pins or ROOT / (flavour.pins if flavour else "constraints.txt"))
    unpinned = (*options.unpinned, *(flavour.unpinned if flavour else ()))
    requirements = list(options.requirement)
    if flavour:
        extras = [*options.extra, *([flavour.extra] if flavour.extra else [])]
        requirements += direct_requirements(extras, options.group, with_web=not options.worker)
    with_uv = _has_uv() if options.tool is None else options.tool == "uv"
    tool = _Uv(options.python) if with_uv else _Pip(options.python)
    try:
        with tempfile.TemporaryDirectory() as folder:
            _install(tool, Path(folder), requirements, pins_file, unpinned, options)
    except CannotInstall as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", help="interpreter of the virtual environment")
    parser.add_argument("requirement", nargs="*", help="packages to install, in addition to the flavour's")
    parser.add_argument("--flavour", choices=FLAVOURS, help="install Proctor's dependencies for this kind of worker")
    parser.add_argument("--worker", action="store_true", help="without the dependencies that only the web needs")
    parser.add_argument("--extra", action="append", default=[], help="an extra of pyproject.toml")
    parser.add_argument("--group", action="append", default=[], help="a dependency group of pyproject.toml")
    parser.add_argument("--pins", help="constraints file with hashes. Default: the flavour's")
    parser.add_argument("--unpinned", action="append", default=[], help="name pattern that needs no pin and no hash")
    parser.add_argument("--editable", metavar="FOLDER", help="then install the project in this folder, editable")
    parser.add_argument("--target", help="install into this folder instead of the virtual environment")
    parser.add_argument("--no-deps", action="store_true", help="only the named packages, without their dependencies")
    parser.add_argument("--tool", choices=("uv", "pip"), help="Default: uv if it runs here, else pip")
    return parser.parse_intermixed_args(arguments)


def _install(
    tool: "_Uv | _Pip",
    folder: Path,
    requirements: list[str],
    pins_file: Path,
    unpinned: Sequence[str],
    options: argparse.Namespace,
) -> None:
    pins = [pin for pin in read_pins(pins_file) if not _matches(pin.name, unpinned)]
    wanted, allowed = folder / "requirements.txt", folder / "pins.txt"
    wanted.write_text("".join(f"{line}\n" for line in requirements))
    allowed.write_text("".join(f"{pin.line}\n" for pin in pins))
    resolved = tool.resolve(wanted, allowed, with_dependencies=not options.no_deps)
    releases = [release for release in resolved if normalized(release.name) not in SLOW_FORMATS]
    verified, unverified = _with_hashes(releases, pins, unpinned, pins_file.name)
    target = ["--target", options.target] if options.target else []
    exact = folder / "exact.txt"
    exact.write_text("\n".join(verified) + "\n")
    tool.install(["--require-hashes", "--no-deps", *target, "--requirement", str(exact)])
    if unverified:
        sys.stderr.write(f"no hash is known for {', '.join(unverified)}: installed without verification\n")
        tool.install(["--no-deps", *target, *unverified])
    if options.editable:
        # by a path instead of code that every start of the interpreter would run: 14 of 24 ms
        as_path = ["-C", "editable_mode=compat"]
        tool.install(["--no-deps", "--no-build-isolation", *as_path, "--editable", options.editable])


def _with_hashes(
    releases: Iterable[Release], pins: Iterable[Pin], unpinned: Sequence[str], source: str
) -> tuple[list[str], list[str]]:
    """Return requirement lines with hashes, and lines of the releases that need none."""
    known = {(normalized(pin.name), pin.version): pin for pin in pins}
    verified, unverified, missing = [], [], []
    for release in releases:
        public = release.version.partition("+")[0]
        pin = known.get((normalized(release.name), public))
        if _matches(release.name, unpinned):
            unverified.append(release.line)
        elif pin is None or not pin.hashes:
            missing.append(release.line)
        else:
            verified.append(" ".join([release.line, *(f"--hash={each}" for each in pin.hashes)]))
    if missing:
        raise CannotInstall(
            f"{source} has no hash for {', '.join(missing)}, so nothing was installed. "
            "If you changed a requirement, run `make constraints` and review its changes."
        )
    return verified, unverified


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(normalized(name), pattern) for pattern in patterns)


def _has_uv() -> bool:
    return subprocess.run([sys.executable, "-m", "uv", "--version"], capture_output=True, check=False).returncode == 0


class _Uv:
    """The uv of the running interpreter. It uses the package index that pip is configured for."""

    def __init__(self, python: str) -> None:
        pip_settings = ask_pip(python)
        pip_settings.pop("constraint", None)  # everything is pinned here
        self.python = python
        self.options = uv_options(pip_settings)
        self.variables = dict(os.environ) | uv_variables(pip_settings)  # noqa: TID251

    def resolve(self, wanted: Path, allowed: Path, *, with_dependencies: bool) -> list[Release]:
        command = ["compile", "--quiet", "--no-header", "--no-annotate", "--constraints", str(allowed), str(wanted)]
        done = self._run([*command, *([] if with_dependencies else ["--no-deps"])], capture=True)
        return [Release(*line.split("==")) for line in done.stdout.split() if "==" in line]

    def install(self, arguments: list[str]) -> None:
        self._run(["install", "--quiet", "--compile-bytecode", *arguments])

    def _run(self, arguments: list[str], *, capture: bool = False) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "uv", "pip", arguments[0], "--python", self.python, *self.options]
        return _checked([*command, *arguments[1:]], self.variables, capture=capture)


class _Pip:
    """The virtual environment's own pip, for machines that uv does not support."""

    def __init__(self, python: str) -> None:
        self.python = python

    def resolve(self, wanted: Path, allowed: Path, *, with_dependencies: bool) -> list[Release]:
        report = wanted.with_name("report.json")
        command = ["install", "-qq", "--dry-run", "--ignore-installed", "--report", str(report)]
        more = [] if with_dependencies else ["--no-deps"]
        self._run([*command, *more, "--constraint", str(allowed), "--requirement", str(wanted)])
        chosen = [each["metadata"] for each in json.loads(report.read_text())["install"]]
        return [Release(each["name"], each["version"]) for each in chosen]

    def install(self, arguments: list[str]) -> None:
        self._run(["install", "-qq", *arguments])

    def _run(self, arguments: list[str]) -> None:
        _checked([self.python, "-m", "pip", *arguments], dict(os.environ))  # noqa: TID251


def _checked(
    command: list[str], variables: Mapping[str, str], *, capture: bool = False
) -> subprocess.CompletedProcess[str]:
    stdout = subprocess.PIPE if capture else None
    done = subprocess.run(command, env=variables, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode == 0:
        return done
    advice = ""
    if any(words in done.stderr.lower() for words in ("hash mismatch", "do not match the hashes")):
        advice = (
            "\nA downloaded file is not the one that the constraints file describes. Nothing of it was installed. "
            "Check the package index before you try again; do not remove the hash."
        )
    raise CannotInstall(f"{done.stderr.strip()}{advice}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
