"""Limits on files that others made: what a zip may unpack to, and what a table may hold.

Stated sizes are checked first, and once more while the file is read, because metadata can lie.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from backend.domain.zips import BadZip, copy_member, open_zip

if TYPE_CHECKING:
    import pyarrow as pa

MAX_MEMBERS = 2_000
MAX_BYTES = 4 * 1024**3
MAX_RATIO = 300
"""A zip that unpacks to more than this many times its size, beyond `FREE_BYTES`, is a bomb."""
FREE_BYTES = 64 * 1024**2
MAX_ROW_GROUP = 1024**3
MAX_ROW_GROUPS = 100_000
MAX_COLUMNS = 1_000
MAX_DEPTH = 16
_SUFFIXES = (".jsonl", ".json", ".parquet", ".arrow", ".md")
_BYTES_PER_VALUE = 16
"""Minimum of a value as a Python object; types without a buffer cost nothing before."""


class BadFile(ValueError):
    """The file cannot be imported."""


class TooMuch(BadFile):
    """The zip unpacks to more than the requested limit."""


def unpack(file: Path, target: Path, most: int = MAX_BYTES) -> list[Path]:
    """Unpack the files with a known suffix, each into a folder of ours. Raises BadFile, TooMuch beyond `most` bytes."""
    left = min(max(FREE_BYTES, file.stat().st_size * MAX_RATIO), most)
    try:
        with file.open("rb") as opened, open_zip(opened, max_files=MAX_MEMBERS, max_bytes=MAX_BYTES) as archive:
            members = [
                info for info in archive.infolist() if not info.is_dir() and info.filename.lower().endswith(_SUFFIXES)
            ]
            if sum(info.file_size for info in members) > most:
                raise TooMuch("the zip unpacks to more than can be read here")
            unpacked = []
            for number, info in enumerate(members):
                path = target / f"{number:04d}" / Path(info.filename).name[-100:]
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as out:
                    left -= copy_member(archive, info, out, left)
                unpacked.append(path)
            return unpacked
    except BadZip as error:
        raise BadFile(str(error)) from error


def check_schema(schema: "pa.Schema") -> None:
    """Raises BadFile for types whose unpacked size cannot be counted beforehand."""
    import pyarrow as pa

    def check(kind: "pa.DataType", name: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise BadFile(f"column {name}: nested deeper than {MAX_DEPTH} levels")
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        is_refused = (
            (pa.types.is_dictionary(kind) and (depth > 0 or pa.types.is_nested(kind.value_type)))
            or pa.types.is_run_end_encoded(kind)
            or pa.types.is_union(kind)
            or pa.types.is_list_view(kind)
            or pa.types.is_large_list_view(kind)
        )
        if is_refused:
            raise BadFile(f"column {name}: the type {str(kind)[:100]} is not supported")
        for number in range(kind.num_fields if pa.types.is_nested(kind) else 0):
            check(kind.field(number).type, name, depth + 1)

    for number in range(len(schema.types)):
        check(schema.types[number], schema.names[number][:100], 0)


def unpacked_bytes(array: "pa.Array") -> int:
    """Estimate the bytes of values as Python objects, without unpacking them."""
    import pyarrow as pa

    kind, types = array.type, pa.types
    if isinstance(array, pa.ExtensionArray):
        return unpacked_bytes(array.storage)
    if types.is_dictionary(kind):
        return sum(_value_bytes(array.dictionary, index) for index in array.indices.to_pylist())
    own = len(array) * _BYTES_PER_VALUE
    if types.is_struct(kind):
        return own + sum(unpacked_bytes(array.field(number)) for number in range(kind.num_fields))
    if types.is_fixed_size_list(kind):
        size = kind.list_size
        return own + unpacked_bytes(array.values.slice(array.offset * size, len(array) * size))
    if types.is_map(kind) or types.is_list(kind) or types.is_large_list(kind):
        first, last = array.offsets[0].as_py(), array.offsets[len(array)].as_py()
        values = (
            pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
            if types.is_map(kind)
            else array.values
        )
        return own + unpacked_bytes(values.slice(first, last - first))
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return own + sum(_value_bytes(array, index) for index in range(len(array)))
    return own + int(array.nbytes)


def _value_bytes(array: "pa.Array", index: int | None) -> int:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind, types = array.type, pa.types
    is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    is_binary = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    if index is None or not (is_text or is_binary):
        return _BYTES_PER_VALUE
    return _BYTES_PER_VALUE + int(pc.binary_length(array.slice(index, 1))[0].as_py() or 0)
