"""What serializers share that store each element as bytes."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa

from holdfast.backends._casts import MisfitError
from holdfast.backends._elements import Elements
from holdfast.backends._serializers._serializer import Serializer


class BytesSerializer(Serializer):
    """Each row of the column has the bytes of one element."""

    @property
    def storage_type(self) -> pa.DataType:
        return pa.large_binary()  # binary would count in 32 bits

    @staticmethod
    def objects(values: Elements) -> list[Any]:
        """Elements as objects. Raises `MisfitError`."""
        if isinstance(values, (pa.Array, pa.ChunkedArray, pa.RecordBatch, pa.Table)):
            message = "Arrow data is for states of an Arrow type"
            raise MisfitError(message)
        if not isinstance(values, Iterable):
            message = f"{type(values).__name__} is no list of elements"
            raise MisfitError(message)
        return list(values)

    def column(self, encoded: list[bytes]) -> list[pa.Array]:
        """The column of these bytes; none if there are none."""
        return [pa.array(encoded, self.storage_type)] if encoded else []

    @staticmethod
    def views(column: pa.ChunkedArray) -> Iterator[memoryview]:
        """The bytes of each element, without a copy."""
        for chunk in column.chunks:
            _, offsets, data = chunk.buffers()
            ends = memoryview(offsets).cast("q")[chunk.offset : chunk.offset + len(chunk) + 1]
            bytes_ = memoryview(data) if data is not None else memoryview(b"")
            for start, end in pairwise(ends):
                yield bytes_[start:end]
