"""How much a table may hold: checked from its metadata, and once more while it is read, because metadata can lie."""

from typing import Any

from backend.rollouts.formats.unpacking import BadFile

MAX_ROW_GROUP = 1024**3
MAX_ROW_GROUPS = 100_000
MAX_COLUMNS = 1_000
MAX_DEPTH = 16
_PER_VALUE = 16
"""Bytes that a value costs at least once it is a Python object; types without a buffer cost nothing before."""


def too_large() -> BadFile:
    return BadFile("the file needs more memory than an import may use; split it, or store it as JSONL")


def check_metadata(metadata: Any, *, max_rows: int, max_bytes: int) -> None:
    """Raises BadFile for a Parquet file that says itself that it is too large."""
    if metadata.num_rows > max_rows:
        raise BadFile(f"{metadata.num_rows:,} rows; at most {max_rows:,} are read")
    if metadata.num_columns > MAX_COLUMNS or metadata.num_row_groups > MAX_ROW_GROUPS:
        raise BadFile(f"more than {MAX_COLUMNS:,} columns or {MAX_ROW_GROUPS:,} row groups")
    sizes = [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]
    if sum(sizes) > max_bytes or max(sizes, default=0) > MAX_ROW_GROUP:
        raise BadFile("the Parquet file unpacks to more than can be read; it is refused")


def check_schema(schema: Any) -> None:
    """Raises BadFile for types that spell out to more than they hold in ways that cannot be counted beforehand."""
    for number in range(len(schema.types)):
        _check_type(schema.types[number], schema.names[number][:100], 0)


def check_row(row: Any, place: str, limit: int, left: int) -> int:
    """Return about how many bytes a row (a record batch of length 1) becomes. Raises BadFile beyond `limit` or `left`.

    Counts without spelling the row out.
    """
    size = sum(_weight(column) for column in row.columns)
    if size > limit:
        raise BadFile(f"{place}: holds more than {limit // 1024**2} MiB")
    if size > left:
        raise BadFile("the table unpacks to more than can be read; it is refused")
    return size


def _check_type(kind: Any, name: str, depth: int) -> None:
    import pyarrow as pa

    if depth > MAX_DEPTH:
        raise BadFile(f"column {name}: nested deeper than {MAX_DEPTH} levels")
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    refused = (
        (pa.types.is_dictionary(kind) and (depth > 0 or pa.types.is_nested(kind.value_type)))
        or pa.types.is_run_end_encoded(kind)
        or pa.types.is_union(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
    )
    if refused:
        raise BadFile(f"column {name}: the type {str(kind)[:100]} is not read here")
    for number in range(kind.num_fields if pa.types.is_nested(kind) else 0):
        _check_type(kind.field(number).type, name, depth + 1)


def _weight(array: Any) -> int:
    import pyarrow as pa

    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return _weight(array.storage)
    if pa.types.is_dictionary(kind):
        return sum(_value_bytes(array.dictionary, index) for index in array.indices.to_pylist())
    own = len(array) * _PER_VALUE
    if pa.types.is_struct(kind):
        return own + sum(_weight(array.field(number)) for number in range(kind.num_fields))
    if pa.types.is_map(kind):
        return own + _weight(_inner(array))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return own + _weight(_inner(array))
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return own + sum(_value_bytes(array, index) for index in range(len(array)))
    return own + int(array.nbytes)


def _inner(array: Any) -> Any:
    """The values of a list's or map's rows, without a copy."""
    import pyarrow as pa

    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        return array.values.slice(array.offset * size, len(array) * size)
    offsets = array.offsets
    first, last = offsets[0].as_py(), offsets[len(array)].as_py()
    if pa.types.is_map(array.type):
        entries = pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
        return entries.slice(first, last - first)
    return array.values.slice(first, last - first)


def _value_bytes(array: Any, index: int | None) -> int:
    if index is None:
        return _PER_VALUE
    import pyarrow.compute as pc

    length = pc.binary_length(array.slice(index, 1))[0].as_py() if _has_length(array.type) else 0
    return _PER_VALUE + int(length or 0)


def _has_length(kind: Any) -> bool:
    import pyarrow as pa

    return any(
        check(kind)
        for check in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_string_view,
            pa.types.is_binary_view,
        )
    )
