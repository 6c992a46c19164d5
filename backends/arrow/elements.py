"""Turns what users hand over into Arrow arrays of a state's type, without changing any value."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.backends.arrow.casts import MisfitError, cast
from holdfast.backends.arrow.large_batches import size_of
from holdfast.backends.arrow.python_values import check_values
from holdfast.common import raise_shortage

Elements: TypeAlias = pa.Array | pa.ChunkedArray | pa.RecordBatch | pa.Table | Iterable[Any]
"""Many elements at once. Record batches and tables are elements of struct type, one a row."""

_ENOUGH_BYTES_OF_A_CHUNK = 1 << 20
"""Larger ones cost nothing but their bytes."""

_MOST_BYTES_OF_A_CHUNK = 1 << 30
"""Arrow's usual strings and lists count in 32 bits: concatenating 2 GiB of them fails."""


def scalar_of(value: Any, element_type: pa.DataType) -> pa.Scalar:
    """One element, independent of `value` from now on. Raises `MisfitError`."""
    (array,) = chunks_of([value], element_type)
    return array[0]


def chunks_of(values: Elements, element_type: pa.DataType) -> list[pa.Array]:
    """The elements as arrays, without a copy where they are Arrow data of that type.

    Raises:
        MisfitError: An element is missing (None), or doesn't fit without loss.
    """
    chunks = _arrays(values, element_type)
    if any(_has_null(chunk) for chunk in chunks):
        message = "None is no element"
        raise MisfitError(message)
    return [chunk for chunk in chunks if len(chunk)]


def nullable(values: Sequence[Any], element_type: pa.DataType) -> pa.Array:
    """A column of Python values; None becomes null. Raises `MisfitError` for what doesn't fit without loss."""
    return _converted(values, element_type)


def compacted(elements: pa.ChunkedArray, *, shared_bytes: int) -> pa.ChunkedArray:
    """The elements in few chunks: each restore adds some, which would slow down all that follow.

    Large chunks stay as they are, in the memory that they were read into or mapped from: to copy
    them would take as long as to read them.

    Args:
        elements: The restored elements.
        shared_bytes: Size of the memory that they are part of, and keep.
    """
    elements = elements.unify_dictionaries()
    is_dense = 2 * size_of(elements) >= shared_bytes
    most_bytes = _ENOUGH_BYTES_OF_A_CHUNK if is_dense else _MOST_BYTES_OF_A_CHUNK
    groups: list[list[pa.Array]] = []
    group_bytes = 0
    for chunk in elements.chunks:
        if not groups or group_bytes + size_of(chunk) > most_bytes:
            groups.append([])
            group_bytes = 0
        groups[-1].append(chunk)
        group_bytes += size_of(chunk)
    chunks = [
        group[0] if is_dense and len(group) == 1 else pa.concat_arrays(group) for group in groups
    ]
    return pa.chunked_array(chunks, elements.type)


def _arrays(values: Elements, element_type: pa.DataType) -> list[pa.Array]:
    given = _arrow_data(values)
    if given is not None:
        return [cast(array, element_type) for array in given]
    objects = list(values)
    if objects and all(isinstance(value, pa.Scalar) for value in objects):
        return [cast(_converted(objects), element_type)]
    objects = [value.as_py() if isinstance(value, pa.Scalar) else value for value in objects]
    return [_converted(objects, element_type)]


def _arrow_data(values: Elements) -> list[pa.Array] | None:
    if isinstance(values, pa.RecordBatch):
        return [values.to_struct_array()]
    if isinstance(values, pa.Table):
        return list(values.to_struct_array().chunks)
    if isinstance(values, pa.ChunkedArray):
        return list(values.chunks)
    if isinstance(values, pa.Array):
        return [values]
    if not isinstance(values, Iterable) or isinstance(values, (str, bytes, Mapping)):
        message = f"{type(values).__name__} is no list of elements"
        raise MisfitError(message)
    if hasattr(
        values, "__array__"
    ):  # NumPy and pandas have columns already, and may change them later
        return [pa.concat_arrays([_converted(_column(values))])]
    return None


def _column(values: Any) -> Any:
    """A column of numpy or pandas as Arrow takes it."""
    if len(getattr(values, "shape", ())) > 1:
        message = (
            f"{type(values).__name__} has rows and columns; make it a pyarrow.Table, for example by "
            "pyarrow.Table.from_pandas"
        )
        raise MisfitError(message)
    is_native = getattr(getattr(values, "dtype", None), "isnative", True)
    return values if is_native else values.astype(values.dtype.newbyteorder("="))


def _converted(values: Any, element_type: pa.DataType | None = None) -> pa.Array:
    """An array of the values, of their own type or of the given one.

    Arrow's texts quote values, which are rows of somebody's stream; ours don't.
    """
    try:
        if element_type is not None:
            check_values(values, element_type)
        # NaN in a column of floats is a number; elsewhere pandas has it for what is missing.
        kind = getattr(getattr(values, "dtype", None), "kind", "")
        array = pa.array(values, type=element_type, from_pandas=False if kind == "f" else None)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise_shortage(error)
        message = f"not every value is a {element_type or 'value of one Arrow type'}"
        raise MisfitError(message) from None
    return pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array


def _has_null(chunk: pa.Array) -> bool:
    if pa.types.is_dictionary(chunk.type) and chunk.dictionary.null_count:
        return bool(pc.any(chunk.is_null()).as_py() or chunk.dictionary_decode().null_count)
    return bool(chunk.null_count)
