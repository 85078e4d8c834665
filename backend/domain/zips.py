"""Read foreign zips within limits: the sizes that they declare are not trusted."""

import io
import struct
import zipfile
import zlib
from typing import IO

_DIRECTORY_BYTES, _LEAST_DIRECTORY_BYTES = 256, 1 << 16
"""Limit of the central directory per allowed file: `zipfile` parses it before it can be checked."""
_CHUNK = 1 << 20
_END, _END_LENGTH = b"PK\x05\x06", 22
_END64, _LOCATOR64 = b"PK\x06\x06", b"PK\x06\x07"
_ENCRYPTED = 1
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
_BROKEN = (zipfile.BadZipFile, zlib.error, struct.error, RuntimeError, EOFError, OSError, OverflowError, ValueError)


class BadZip(ValueError):
    """The zip is broken or too large."""


def open_zip(file: IO[bytes], *, max_files: int, max_bytes: int) -> zipfile.ZipFile:
    """Open a zip whose list of files stays within the limits. Raises BadZip."""
    too_large = BadZip(f"the zip holds more than {max_files:,} files or {max_bytes:,} bytes")
    try:
        if _directory_size(file) > max(_LEAST_DIRECTORY_BYTES, _DIRECTORY_BYTES * max_files):
            raise too_large
        archive = zipfile.ZipFile(file)
    except _BROKEN as error:
        raise error if isinstance(error, BadZip) else BadZip("this is not a zip that can be read") from error
    files = [entry for entry in archive.infolist() if not entry.is_dir()]
    if len(files) > max_files or sum(entry.file_size for entry in files) > max_bytes:
        raise too_large
    return archive


def copy_member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, out: IO[bytes], limit: int) -> int:
    """Unpack one file and return its bytes. Raises BadZip once they are more than `limit`."""
    name = repr(entry.filename[:100])
    if entry.compress_type not in _METHODS:  # bzip2 and LZMA are unpacked without a bound by `zipfile`
        raise BadZip(f"{name} is packed by another method than deflate; pack the zip with the usual settings")
    if entry.flag_bits & _ENCRYPTED:
        raise BadZip(f"{name} is encrypted; pack the zip without a password")
    size = 0
    try:
        with archive.open(entry) as packed:
            while part := packed.read(_CHUNK):
                size += len(part)
                if size > limit:
                    raise BadZip(f"{name} unpacks to far more than allowed; the zip is refused")
                out.write(part)
    except _BROKEN as error:
        raise error if isinstance(error, BadZip) else BadZip(f"{name} cannot be unpacked") from error
    return size


def read_member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, limit: int) -> bytes:
    """Return one file's bytes. Raises BadZip once they are more than `limit`."""
    out = io.BytesIO()
    copy_member(archive, entry, out, limit)
    return out.getvalue()


def _directory_size(file: IO[bytes]) -> int:
    """Return the size of the central directory as `zipfile` will read it."""
    length = file.seek(0, io.SEEK_END)
    start = max(0, length - _END_LENGTH - 0xFFFF)
    file.seek(start)
    tail = file.read()
    at = tail.rfind(_END)
    if at < 0:
        raise BadZip("this is not a zip that can be read")
    size = int(struct.unpack_from("<L", tail, at + 12)[0])
    locator = tail[at - 20 : at] if at >= 20 else b""
    if locator.startswith(_LOCATOR64):
        file.seek(max(0, start + at - 20 - 56))
        record = file.read(56)
        if record.startswith(_END64):
            size = max(size if size != 0xFFFFFFFF else 0, int(struct.unpack_from("<Q", record, 40)[0]))
    file.seek(0)
    return size
