"""Wheels and source distributions that do harm, made by code; each has an honest twin."""

import base64
import gzip
import hashlib
import io
import stat
import struct
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

ZEROS = bytes(1 << 20)


def make_wheel(
    folder: Path,
    name: str,
    files: Mapping[str, bytes] = {},
    *,
    needs: tuple[str, ...] = (),
    unlisted: Mapping[str, bytes] = {},
    links: Mapping[str, str] = {},
    zeros: Mapping[str, int] = {},
    wrong_hash: str = "",
    modes: Mapping[str, int] = {},
    filename: str = "",
) -> Path:
    """Version 1.0 of a distribution with one module, and whatever else is given. `zeros`: megabytes by path."""
    path = folder / (filename or f"{name}-1.0-py3-none-any.whl")
    info = f"{name}-1.0.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n" + "".join(f"Requires-Dist: {n}\n" for n in needs)
    content = {
        f"{name}.py": f"NAME = {name!r}\n".encode(),
        **files,
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [f"{at},{_hash(b'other' if at == wrong_hash else data)},{len(data)}" for at, data in content.items()]
    record += [f"{at},," for at in (*links, *zeros, f"{info}/RECORD")]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for at, data in {**content, **unlisted}.items():
            entry = zipfile.ZipInfo(at)
            entry.external_attr = (stat.S_IFREG | modes.get(at, 0o644)) << 16
            archive.writestr(entry, data)
        for at, target in links.items():
            entry = zipfile.ZipInfo(at)
            entry.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(entry, target)
        for at, megabytes in zeros.items():
            with archive.open(at, "w", force_zip64=True) as file:
                for _ in range(megabytes):
                    file.write(ZEROS)
        archive.writestr(f"{info}/RECORD", "\n".join(record) + "\n")
    return path


def _hash(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def understate(path: Path, name: str, size: int) -> None:
    """Make the directory of a wheel say that a file unpacks to `size` bytes; its content stays."""
    data = bytearray(path.read_bytes())
    at = data.find(b"PK\x01\x02")
    while at >= 0:
        length = struct.unpack_from("<H", data, at + 28)[0]
        if data[at + 46 : at + 46 + length] == name.encode():
            struct.pack_into("<I", data, at + 24, size)
        at = data.find(b"PK\x01\x02", at + 4)
    path.write_bytes(bytes(data))


SETUP = "from setuptools import setup\nsetup(name={name!r}, version='1.5', py_modules=['{name}'])\n"


def make_source(folder: Path, name: str, megabytes_of_zeros: int = 0, *, files: int = 0) -> Path:
    """A source distribution, version 1.5; its tail unpacks to that much, or has that many empty files."""
    path = folder / f"{name}-1.5.tar.gz"
    with gzip.open(path, "wb", compresslevel=1) as packed, tarfile.open(fileobj=packed, mode="w|") as archive:
        for at, text in {f"{name}.py": f"NAME = {name!r}\n", "setup.py": SETUP.format(name=name)}.items():
            entry = tarfile.TarInfo(f"{name}-1.5/{at}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
        for number in range(files):
            archive.addfile(tarfile.TarInfo(f"{name}-1.5/{number}"))
        if megabytes_of_zeros:
            entry = tarfile.TarInfo(f"{name}-1.5/zeros")
            entry.size = megabytes_of_zeros << 20
            archive.addfile(entry, Zeros(entry.size))  # type: ignore[arg-type]
    return path


class Zeros(io.RawIOBase):
    """A file of zeros that takes no memory."""

    def __init__(self, size: int) -> None:
        self._left = size

    def read(self, size: int = -1) -> bytes:
        count = min(self._left, len(ZEROS) if size < 0 else size)
        self._left -= count
        return ZEROS[:count] if count <= len(ZEROS) else bytes(count)
