"""Read a foreign package from a zip, a folder or a git repository, and check the addresses of servers."""

import io
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit, urlunsplit

from backend.core.embedded import die_with_parent
from backend.core.outgoing import CannotConnect, outgoing_policy
from backend.domain.addresses import port_of
from backend.domain.environments.foreign import MAX_NAMES
from backend.domain.environments.packages import PackageInvalid
from backend.domain.zips import BadZip, open_zip, read_member

MAX_UPLOAD_BYTES = 30_000_000
MAX_UNPACKED_BYTES = 80_000_000
MAX_FILE_BYTES = 20_000_000
"""Larger files are skipped."""


def read_zip(data: bytes, name: str = "") -> tuple[dict[str, bytes], str]:
    """Return the files and the name of their folder. Raises PackageInvalid."""
    if len(data) > MAX_UPLOAD_BYTES:
        raise PackageInvalid(f"the zip has {len(data):,} bytes; the limit is {MAX_UPLOAD_BYTES:,}")
    files: dict[str, bytes] = {}
    left = MAX_UNPACKED_BYTES
    try:
        with open_zip(io.BytesIO(data), max_files=MAX_NAMES, max_bytes=MAX_UNPACKED_BYTES) as archive:
            for entry in archive.infolist():
                if not entry.is_dir() and entry.file_size <= MAX_FILE_BYTES:
                    files[entry.filename] = read_member(archive, entry, min(left, MAX_FILE_BYTES))
                    left -= len(files[entry.filename])
    except BadZip as error:
        raise PackageInvalid(str(error)) from error
    for path in files:
        if path.startswith("/") or ".." in PurePosixPath(path).parts:
            raise PackageInvalid(f"the zip has a path that leads outside: {path[:100]!r}")
    return files, PurePosixPath(name).stem


def read_tree(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder by path; links are not followed. Raises PackageInvalid."""
    files: dict[str, bytes] = {}
    total = 0
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_symlink() or not path.is_file() or ".git" in inside.parts or ".venv" in inside.parts:
            continue
        size = path.stat().st_size
        total += size
        if len(files) >= MAX_NAMES or total > 20 * MAX_UNPACKED_BYTES:
            raise PackageInvalid(f"{folder} holds more than {MAX_NAMES} files: name the package's folder in it")
        if size <= MAX_FILE_BYTES:
            files[inside.as_posix()] = path.read_bytes()
    return files


def checked_url(text: str) -> str:
    """Check that this server may connect to an address, and return it without spaces and slashes around it.

    It must be http(s), and public unless private addresses are allowed. Raises PackageInvalid.
    """
    url = text.strip().rstrip("/")
    try:
        parts = urlsplit(url)
        port = port_of(parts)
    except ValueError as error:
        raise PackageInvalid(f"this is not an address: {error}") from error
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise PackageInvalid("an address begins with http:// or https://")
    if parts.username or parts.password:
        raise PackageInvalid("leave names and passwords out of the address")
    if any(character.isspace() or ord(character) < 32 for character in url):
        raise PackageInvalid("an address has no spaces")
    try:
        outgoing_policy().check_host(parts.hostname, port)
    except CannotConnect as error:
        raise PackageInvalid(str(error)) from error
    return url


CLONE_SECONDS = 120.0
READ_SECONDS = 60.0
MAX_PACK_BYTES = 500_000_000
SLOW_BYTES, SLOW_SECONDS = 1000, 20
"""A server that sends fewer bytes than this for this long is given up."""
_ISOLATED_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LC_ALL": "C",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ALLOW_PROTOCOL": "http:https",
}
"""For a server that clones for users: none of its own configuration, and http(s) only."""
_SAFE_OPTIONS = {
    "core.hooksPath": "/dev/null",
    "fetch.fsckObjects": "true",
    "http.lowSpeedLimit": str(SLOW_BYTES),
    "http.lowSpeedTime": str(SLOW_SECONDS),
}
_MIN_GIT = (2, 37)
"""The first version with `http.curloptResolve`."""
_ENTRY = re.compile(rb"^(?P<mode>\d{6}) (?P<kind>\w+) (?P<id>[0-9a-f]+) +(?P<size>\d+|-)\t(?P<path>.+)$", re.DOTALL)
_FILE_MODES = {b"100644", b"100755"}


def read_repository(url: str, reference: str = "", path: str = "", *, is_own: bool = False) -> dict[str, bytes]:
    """Return the files below `path` of the latest commit, or of a branch or tag. Raises PackageInvalid.

    `is_own`: on the user's own machine, with its git configuration and any address.
    """
    if reference.startswith("-") or "\0" in reference:
        raise PackageInvalid(f"there is no branch or tag {reference[:80]!r}")
    folder_path = PurePosixPath(path.strip().strip("/"))
    if ".." in folder_path.parts or "\0" in path:
        raise PackageInvalid(f"the path {path[:100]!r} leads outside of the repository")
    inside = "" if str(folder_path) == "." else str(folder_path)
    with tempfile.TemporaryDirectory(prefix="proctor-clone-") as folder:
        git = _Git(Path(folder), is_own=is_own)
        git.fetch(url, reference)
        try:
            files = git.contents(git.entries(inside))
        except subprocess.SubprocessError as error:
            raise PackageInvalid(f"{url} was fetched, but git cannot read it") from error
    return {f"{inside}/{name}" if inside else name: data for name, data in files.items()}


class _Git:
    """One bare repository in a temporary folder."""

    def __init__(self, folder: Path, *, is_own: bool) -> None:
        self._folder, self._is_own = folder, is_own
        self._home = folder / "repository"

    def fetch(self, url: str, reference: str) -> None:
        address, more = (url, {}) if self._is_own else _web_address(url)
        options = {**_SAFE_OPTIONS, **more}
        branch = ("--branch", reference) if reference else ()
        shallow = ("--bare", "--quiet", "--depth", "1", "--no-tags", "--single-branch")
        try:
            self._run(options, ("clone", *shallow, *branch, "--", address, str(self._home)), CLONE_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise PackageInvalid(f"cloning {url} took longer than {CLONE_SECONDS:g} s") from error
        except subprocess.CalledProcessError as error:
            if self._is_own:
                lines = error.stderr.decode(errors="replace").strip().splitlines()
                lines = [line for line in lines if line.startswith(("fatal:", "remote:", "error:"))] or lines
                why = lines[-1][:300] if lines else "git failed"
            else:  # explained without repeating it, because git quotes the server's own text
                message = error.stderr.decode(errors="replace")
                why = next((why for pattern, why in _REASONS if re.search(pattern, message)), "git failed")
                why = why.format(limit=MAX_PACK_BYTES)
                if status := re.search(r"returned error: (\d{3})\b", message):
                    why = f"{why} (HTTP {status[1]})"
            raise PackageInvalid(f"{url} cannot be cloned: {why}") from error

    def entries(self, path: str) -> dict[str, tuple[bytes, int]]:
        """Return id and size of the plain files below a folder, without links and submodules. Raises PackageInvalid."""
        found: dict[str, tuple[bytes, int]] = {}
        count, rest = 0, b""
        process = self._start({}, ("ls-tree", "-r", "-z", "-l", "--end-of-options", f"HEAD:{path}"))
        overdue = threading.Timer(READ_SECONDS, _kill_group, (process.pid,))  # also ends a read that waits for it
        overdue.start()
        try:
            assert process.stdout is not None
            while part := process.stdout.read1(1 << 16):  # type: ignore[attr-defined]
                *lines, rest = (rest + part).split(b"\0")
                count += len(lines)
                if count > MAX_NAMES:
                    raise PackageInvalid(
                        f"the repository holds more than {MAX_NAMES} files: name the package's folder in it"
                    )
                for match in filter(None, map(_ENTRY.match, lines)):
                    if match["mode"] in _FILE_MODES and int(match["size"]) <= MAX_FILE_BYTES:
                        found[match["path"].decode(errors="replace")] = (match["id"], int(match["size"]))
            process.wait(READ_SECONDS)
            if process.returncode == -signal.SIGKILL:
                raise subprocess.TimeoutExpired("ls-tree", READ_SECONDS)
        finally:
            overdue.cancel()
            _end(process)
        if process.returncode:
            if not path:
                raise PackageInvalid("the repository has no commit")
            shown = self._run({}, ("ls-tree", "--end-of-options", "HEAD", f":(literal){path}"), READ_SECONDS)
            if shown.startswith(b"160000"):
                raise PackageInvalid(f"{path} is a submodule: import the repository that it points to")
            raise PackageInvalid(f"the repository has no folder {path!r}")
        if sum(size for _, size in found.values()) > MAX_UNPACKED_BYTES:
            raise PackageInvalid(
                f"the repository holds more than {MAX_UNPACKED_BYTES:,} bytes: name the package's folder in it"
            )
        return found

    def contents(self, entries: Mapping[str, tuple[bytes, int]]) -> dict[str, bytes]:
        ids = b"".join(id + b"\n" for id, _ in entries.values())
        output = self._run({}, ("cat-file", "--batch"), READ_SECONDS, ids)
        files, at = {}, 0
        for path, (_, size) in entries.items():
            at = output.index(b"\n", at) + 1
            files[path] = output[at : at + size]
            at += size + 1
        return files

    def _start(self, options: Mapping[str, str], arguments: Sequence[str]) -> "subprocess.Popen[bytes]":
        configuration = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        repository = ["--git-dir", str(self._home)] if arguments[0] != "clone" else []
        environment = None if self._is_own else {**_ISOLATED_ENVIRONMENT, "HOME": str(self._folder)}
        try:
            process = subprocess.Popen(
                ["git", *configuration, *repository, *arguments],
                env=environment,
                cwd=self._folder,
                start_new_session=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                preexec_fn=partial(die_with_parent, signal.SIGKILL) if sys.platform == "linux" else None,
            )
        except FileNotFoundError as error:
            raise PackageInvalid("git is not installed here; upload the package as a zip") from error
        if hasattr(resource, "prlimit"):
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (MAX_PACK_BYTES, MAX_PACK_BYTES))
        return process

    def _run(self, options: Mapping[str, str], arguments: Sequence[str], seconds: float, given: bytes = b"") -> bytes:
        process = self._start(options, arguments)
        try:
            output, errors = process.communicate(given, timeout=seconds)
        finally:
            _end(process)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, arguments[0], output, errors)
        return output


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # it has ended
        os.killpg(pid, signal.SIGKILL)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill git and its children: its HTTP helper may hang on its own."""
    _kill_group(process.pid)
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _web_address(url: str) -> tuple[str, dict[str, str]]:
    """Return the address in canonical form, and git's options for it. Raises PackageInvalid.

    git follows no redirect, and therefore no alternates on other hosts. The name resolves to the checked addresses.
    """
    parts = urlsplit(checked_url(url))
    policy = outgoing_policy()
    if not policy.allow_private:  # an older git ignores the checked addresses
        command = ["git", "version"]
        output = subprocess.run(
            command, capture_output=True, env=_ISOLATED_ENVIRONMENT, check=True, timeout=READ_SECONDS
        ).stdout
        version = re.search(rb"(\d+)\.(\d+)", output)
        if version is None or tuple(map(int, version.groups())) < _MIN_GIT:
            raise PackageInvalid(
                "this server's git is older than 2.37 and cannot clone safely; upload the package as a zip"
            )
    try:
        target = policy.resolve(str(parts.hostname), port_of(parts))
    except (CannotConnect, ValueError) as error:
        raise PackageInvalid(str(error)) from error
    host = f"[{target.host}]" if ":" in target.host else target.host
    addresses = ",".join(f"[{address}]" if ":" in address else address for address in target.addresses)
    pinned = f"{host}:{target.port}:{addresses}"
    netloc = f"{host}:{parts.port}" if parts.port else host
    address = urlunsplit((parts.scheme, netloc, parts.path, parts.query, ""))
    return address, {"http.followRedirects": "false", "http.curloptResolve": pinned, "transfer.bundleURI": "false"}


_REASONS = (
    ("index-pack|unpack-objects|File too large", "it is larger than {limit:,} bytes, or the transfer was damaged"),
    ("Operation too slow", f"its server sent almost nothing for {SLOW_SECONDS} s"),
    (r"redirect|returned error: 30\d", "its server redirects; give the final address"),
    (r"Remote branch .* not found|couldn't find remote ref", "it has no such branch or tag"),
    (r"could not read Username|Authentication failed|error: 40[13]", "its server asks for a sign-in"),
    (r"repository .* not found|error: 404", "there is no repository at this address"),
    ("Connection refused|Failed to connect", "its server cannot be reached"),
    ("SSL|certificate", "the server's TLS certificate was refused"),
    (r"not valid: is this a git repository|not a git repository", "there is no git repository at this address"),
    (r"empty repository|no commit", "the repository has no commit"),
    (r"error: 5\d\d", "its server failed"),
)
"""Patterns of git's messages, matched in this order."""
