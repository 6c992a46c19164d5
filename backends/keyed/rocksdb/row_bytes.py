"""Rows of Arrow columns as bytes, and back: the keys and values of a database. Pure.

    fixed       if all columns are numbers or times: a head, and for each column 1 byte (0 null, 1 a value) and the
                value, little-endian
    otherwise   a head, and a MessagePack array of the row's cells; types without cells are an Arrow IPC stream of a
                row, as extension 1

A head is a number of 8 bytes: the sort key before a key, the time before a value that expires. Rows are equal if and
only if their bytes are.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.arrow import refuse_compressed
from holdfast.backends.keyed.columns import from_cells, numpy_type, to_arrow, to_cells
from holdfast.common import message_pack_decoder

SORT_KEY = ">u8"
"""The head of keys, big-endian because RocksDB sorts by bytes."""

TIME = "<i8"
"""The head of values that expire."""

_HEAD_BYTES = 8
_ROW = 1


class RowForm:
    """The encoding of rows with these columns.

    Args:
        fields: The columns.
        head: The number before each row: `SORT_KEY`, `TIME`, or None for rows without a head.
    """

    def __init__(self, fields: Sequence[pa.Field], head: str | None) -> None:
        self._types = [field.type for field in fields]
        self._head = None if head is None else np.dtype(head)
        plain = [numpy_type(type) for type in self._types]
        known = [kind.newbyteorder("<") for kind in plain if kind is not None]
        self._record: np.dtype[Any] | None = None
        if len(known) == len(plain):
            parts: list[tuple[str, Any]] = [] if head is None else [("head", head)]
            for number, kind in enumerate(known):
                parts += [(f"has {number}", "u1"), (f"value {number}", kind)]
            self._record = np.dtype(parts)

    def encode(
        self, columns: Sequence[pa.Array], count: int, head: npt.NDArray[Any] | None = None
    ) -> list[bytes]:
        """Encode each row.

        Args:
            columns: The columns, each of `count` rows.
            count: Number of rows.
            head: The number before each row.
        """
        if self._record is not None:
            return self._encode_fixed(self._record, columns, count, head)
        rows = map(_ENCODER.encode, zip(*map(to_cells, columns), strict=True))
        if head is None or self._head is None:
            return list(rows)
        heads = _slices(head.astype(self._head).tobytes(), _HEAD_BYTES)
        return [first + row for first, row in zip(heads, rows, strict=True)]

    def decode(self, rows: Sequence[bytes]) -> tuple[pa.Array, ...]:
        """Decode rows to columns."""
        if self._record is None:
            skipped = 0 if self._head is None else _HEAD_BYTES
            cells = [_DECODER.decode(memoryview(row)[skipped:]) for row in rows]
            return tuple(
                from_cells([row[number] for row in cells], type)
                for number, type in enumerate(self._types)
            )
        if not self._types:
            return ()
        records = np.frombuffer(b"".join(rows), self._record) if rows else np.empty(0, self._record)
        columns = []
        for number, type in enumerate(self._types):
            present = records[f"has {number}"].astype(np.bool_)
            value = np.ascontiguousarray(records[f"value {number}"])
            columns.append(to_arrow(value, type, None if present.all() else present))
        return tuple(columns)

    def heads(self, rows: Sequence[bytes]) -> npt.NDArray[Any]:
        """Decode the heads of rows."""
        assert self._head is not None  # callers check
        whole = b"".join([row[:_HEAD_BYTES] for row in rows])
        native = self._head.newbyteorder("=")
        return np.frombuffer(whole, self._head).astype(native)

    @staticmethod
    def _encode_fixed(
        record: np.dtype[Any],
        columns: Sequence[pa.Array],
        count: int,
        head: npt.NDArray[Any] | None,
    ) -> list[bytes]:
        if not record.itemsize:
            return [b""] * count
        records = np.zeros(count, record)
        if head is not None:
            records["head"] = head
        for number, column in enumerate(columns):
            kind = record[f"value {number}"]
            if not count:
                continue
            data = column.buffers()[1]
            if data is None:  # all values are null
                continue
            values = np.frombuffer(data, kind, count, column.offset * kind.itemsize)
            if column.null_count:
                present = column.is_valid().to_numpy(zero_copy_only=False)
                records[f"has {number}"] = present
                records[f"value {number}"] = np.where(present, values, kind.type(0))
            else:
                records[f"has {number}"] = 1
                records[f"value {number}"] = values
        return _slices(records.tobytes(), record.itemsize)


def _slices(whole: bytes, width: int) -> list[bytes]:
    slices: list[bytes] = np.frombuffer(whole, f"V{width}").tolist()
    return slices


def _pack_row(row: Any) -> msgspec.msgpack.Ext:
    """Encode a row that is an Arrow array. Raises `TypeError` for other types."""
    if not isinstance(row, pa.Array):
        raise TypeError(f"{type(row)} is not a cell")
    batch = pa.record_batch([row], ["row"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return msgspec.msgpack.Ext(_ROW, sink.getvalue().to_pybytes())


def _unpack_row(code: int, data: memoryview) -> pa.Array:
    """Decode a row that is an Arrow array. Raises `ValueError` for other extensions."""
    if code != _ROW:
        raise ValueError(f"extension {code} is not a row")
    stored = bytes(data)
    refuse_compressed(
        stored
    )  # cells are never compressed, and Arrow would allocate any size they declare
    with pa.ipc.open_stream(pa.py_buffer(stored)) as stream:
        return stream.read_next_batch().column(0)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_pack_row)
_DECODER = message_pack_decoder(list, ext_hook=_unpack_row)
