"""A program: check wheels and unpack their modules. Nothing but the standard library; nothing of a wheel is run.

Each line of standard input is a JSON object: `path` and `name` of a wheel, `target`, a folder that does not exist yet,
and `limits`. Each line of standard output answers one: the number of files written, or `error`. A wheel is checked
whole before its first file is written. Sizes are those of the archive's directory, and reading stops there: an archive
whose directory is wrong fails its checksum.
"""

import base64
import csv
import hashlib
import io
import json
import os
import re
import shutil
import stat
import sys
import unicodedata
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_MAX_TABLE_BYTES = 32 << 20
"""RECORD and WHEEL are read into memory."""
_HASHES = {"sha256", "sha384", "sha512"}
_UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError, csv.Error)


class WheelRefused(Exception):
    """A wheel breaks the format or a bound, named in the message."""


@dataclass(frozen=True, slots=True)
class WheelLimits:
    archive_bytes: int
    unpacked_bytes: int
    ratio: int
    """Unpacked bytes for each byte of the archive, for wheels above `ratio_free_bytes`."""
    ratio_free_bytes: int
    files: int


def main() -> None:
    os.umask(0o022)
    for line in sys.stdin:
        try:
            answer = unpack(**json.loads(line))
        except WheelRefused as error:
            answer = {"error": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def unpack(path: str, name: str, target: str, limits: Mapping[str, int]) -> dict[str, object]:
    """Raises WheelRefused; nothing is left of `target` then."""
    label = os.path.basename(path)
    try:
        with zipfile.ZipFile(path) as archive:
            files, dropped = _plan(archive, label, name, os.path.getsize(path), WheelLimits(**limits))
            os.makedirs(target)
            for folder in sorted({folder for inside in files for folder in folders_of(inside)}):
                os.mkdir(f"{target}/{folder}")
            for inside, (entry, expected) in files.items():
                _write(archive, entry, f"{target}/{inside}", expected, label)
    except BaseException as error:
        shutil.rmtree(target, ignore_errors=True)
        if isinstance(error, MemoryError):
            raise WheelRefused(f"{label} needs more memory to be read than a wheel may take") from None
        if not isinstance(error, _UNREADABLE):
            raise
        reason = str(error).replace(target, "").replace(path, label)
        raise WheelRefused(f"{label} is not a valid wheel: {reason}") from error
    size = sum(entry.file_size for entry, _ in files.values())
    return {"files": len(files), "bytes": size, "dropped": dropped}


def _plan(
    archive: zipfile.ZipFile, label: str, name: str, size: int, limits: WheelLimits
) -> tuple[dict[str, tuple[zipfile.ZipInfo, str]], Counter[str]]:
    """Check all sizes and every entry.

    Returns entries and hashes by path below site-packages, and the number of others by kind.
    """
    if size > limits.archive_bytes:
        raise WheelRefused(f"{label} has {_mb(size)}; at most {_mb(limits.archive_bytes)} are allowed for a wheel")
    members = archive.infolist()
    if len(members) > limits.files:
        raise WheelRefused(f"{label} holds {len(members):,} files; at most {limits.files:,} are allowed in a wheel")
    unpacked = sum(entry.file_size for entry in members)
    if unpacked > limits.unpacked_bytes:
        raise WheelRefused(
            f"{label} unpacks to {_mb(unpacked)}; at most {_mb(limits.unpacked_bytes)} are allowed for a wheel"
        )
    if unpacked > max(limits.ratio_free_bytes, limits.ratio * size):
        raise WheelRefused(
            f"{label} has {_mb(size)} and unpacks to {_mb(unpacked)}; "
            f"above {_mb(limits.ratio_free_bytes)} at most {limits.ratio} times its size is allowed"
        )
    entries = [(entry, _checked_parts(entry, label)) for entry in members]
    files = [(entry, parts) for entry, parts in entries if not entry.is_dir()]
    top = {parts[0] for _, parts in files if len(parts) > 1}
    infos = [folder for folder in top if folder.endswith(".dist-info")]
    names = [name, *(info.removesuffix(".dist-info").rpartition("-")[0] for info in infos)]
    if len(infos) != 1 or len({re.sub(r"[-_.]+", "-", each).lower() for each in names}) != 1:
        raise WheelRefused(f"{label} needs exactly one .dist-info folder, named after {name}")
    [info] = infos
    by_path = {"/".join(parts): entry for entry, parts in files}
    if len(by_path) != len(files):
        raise WheelRefused(f"{label} holds a file twice")
    version = re.search(r"^Wheel-Version:\s*(\d+)\.", _text(archive, by_path, f"{info}/WHEEL", label), re.MULTILINE)
    if version is None or version[1] != "1":
        raise WheelRefused(f"{label} is not a wheel of version 1")
    record = csv.reader(io.StringIO(_text(archive, by_path, f"{info}/RECORD", label)))
    listed = {row[0]: row[1] if len(row) > 1 else "" for row in record if row}  # its hash, or nothing
    planned: dict[str, tuple[zipfile.ZipInfo, str]] = {}
    dropped = Counter[str]()
    for entry, parts in files:
        path = target = "/".join(parts)
        if path not in listed and not (parts[0] == info and path.endswith(("/RECORD", "/RECORD.jws", "/RECORD.p7s"))):
            raise WheelRefused(f"{label} holds {path!r}, which its RECORD does not list")
        if parts[0].endswith(".data"):  # modules, or programs, headers and data for other places
            if len(parts) <= 2 or parts[1] not in {"purelib", "platlib"}:
                dropped[parts[1] if len(parts) > 1 else path] += 1
                continue
            target = "/".join(parts[2:])
        if target in planned:
            raise WheelRefused(f"{label} installs {target!r} twice")
        planned[target] = (entry, listed.get(path, ""))
    both = next((folder for path in planned for folder in folders_of(path) if folder in planned), None)
    if both:
        raise WheelRefused(f"{label} installs {both!r} as a file and as a folder")
    folded = Counter(unicodedata.normalize("NFC", path).casefold() for path in planned)
    if clash := next((path for path, count in folded.items() if count > 1), None):
        raise WheelRefused(f"{label} holds names that differ only in case or in Unicode form: {clash!r}")
    return planned, dropped


def _checked_parts(entry: zipfile.ZipInfo, label: str) -> list[str]:
    name = entry.filename
    shown = repr(entry.orig_filename[:120])
    if entry.orig_filename != name or "\\" in name or any(ord(character) < 32 for character in name):
        raise WheelRefused(f"{label} holds the file name {shown}, which is not allowed")
    parts = name.removesuffix("/").split("/")
    if any(part in {"", ".", ".."} for part in parts):
        raise WheelRefused(f"{label} holds the path {shown}, which leads outside of its folder")
    encoded = [len(part.encode(errors="surrogatepass")) for part in parts]
    if max(encoded) > 250 or sum(encoded) > 1000 or len(parts) > 50:
        raise WheelRefused(f"{label} holds a path that is too long: {shown}")
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in {0, stat.S_IFDIR if entry.is_dir() else stat.S_IFREG}:
        raise WheelRefused(f"{label} holds {shown}, which is not a regular file")
    if entry.flag_bits & (0x1 | 0x40) or entry.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise WheelRefused(f"{label} holds {shown} encrypted or in a compression that wheels do not use")
    return parts


def _text(archive: zipfile.ZipFile, by_path: Mapping[str, zipfile.ZipInfo], path: str, label: str) -> str:
    entry = by_path.get(path)
    if entry is None:
        raise WheelRefused(f"{label} has no {path}")
    if entry.file_size > _MAX_TABLE_BYTES:
        raise WheelRefused(f"{label}: {path} is larger than {_mb(_MAX_TABLE_BYTES)}")
    return b"".join(_parts(archive, entry)).decode()


def folders_of(path: str) -> Iterator[str]:
    return (path[:at] for at, character in enumerate(path) if character == "/")


def _write(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: str, expected: str, label: str) -> None:
    algorithm, _, value = expected.partition("=")
    if expected and algorithm not in _HASHES:
        raise WheelRefused(f"{label}: RECORD lists {entry.filename!r} with a hash other than {', '.join(_HASHES)}")
    digest = hashlib.new(algorithm) if expected else None
    mode = 0o755 if entry.external_attr >> 16 & 0o111 else 0o644
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        for part in _parts(archive, entry):
            if digest is not None:
                digest.update(part)
            left = memoryview(part)
            while left:
                left = left[os.write(descriptor, left) :]
    finally:
        os.close(descriptor)
    if digest is not None and base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode() != value.rstrip("="):
        raise WheelRefused(f"{label}: {entry.filename!r} is not the file that RECORD lists: its hash differs")


def _parts(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield the content in chunks: `read()` without a size would unpack all that the archive has."""
    left = entry.file_size
    with archive.open(entry) as file:
        while left:
            part = file.read(min(1 << 20, left))
            if not part:
                raise zipfile.BadZipFile(f"{entry.filename!r} is shorter than declared")
            left -= len(part)
            yield part


def _mb(count: int) -> str:
    return f"{count / (1 << 20):,.1f} MB"


if __name__ == "__main__":
    main()
