"""The base of serializers that store each element as bytes."""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from holdfast.backends.arrow import Elements, MisfitError
from holdfast.backends.serializers.serializer import Serializer


class BytesSerializer(Serializer):
    """Each row of the column has the bytes of one element."""

    @property
    def storage_type(self) -> pa.DataType:
        return pa.large_binary()  # binary would count in 32 bits

    def encode(self, values: Elements) -> list[pa.Array]:
        return self.column_of([self.encode_one(value) for value in objects_in(values)])

    def encoded_in(self, column: pa.ChunkedArray) -> list[bytes]:
        return list(column.to_pylist())


def objects_in(values: Elements) -> list[Any]:
    """Elements as objects. Raises `MisfitError`."""
    if isinstance(values, (pa.Array, pa.ChunkedArray, pa.RecordBatch, pa.Table)):
        message = "Arrow data is for states of an Arrow type"
        raise MisfitError(message)
    if not isinstance(values, Iterable) or isinstance(values, (str, bytes, Mapping)):
        message = f"{type(values).__name__} is no list of elements"
        raise MisfitError(message)
    return list(values)
