"""Conversion of rows of Holdfast's keyed states to Flink's entries, the inverse of `imported_tables`. Pure.

keys         several columns become a tuple; key groups are those of Flink's hash
namespaces   a start and an end become a time window, other columns are converted like keys
timers       timers of functions, and of windows
"""

import itertools
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.backends.inspection import StoredState
from holdfast.backends.keyed import TableSpec
from holdfast.backends.keys import flink_key_groups
from holdfast.errors import InvalidRequestError
from holdfast.flink.serializers import (
    NO_NAMESPACE,
    WINDOW_OF_TIME,
    WrittenType,
    list_snapshot,
    list_without_count,
    map_snapshot,
    nullable_value,
    plain_type,
    timer_snapshot,
    timer_time,
    tuple_of_columns,
    with_last_access,
    written_type,
)
from holdfast.flink.spilled_rows import Groups
from holdfast.flink.states import TIMERS, prefix_bytes
from holdfast.flink.written_streams import keyed_info

ENTRY = pa.schema([("key", pa.binary()), ("value", pa.binary())])
OF_WINDOWS = "_timers/event/windows"
"""Timers of a window operator."""

_SERVICES = {
    "_timers/event/timers": ("event", "user-timers"),
    "_timers/processing/timers": ("processing", "user-timers"),
    OF_WINDOWS: ("event", "window-timers"),
}
_CONTENTS = "window-contents"
_TIME_WINDOW = pa.schema([("start", pa.int64()), ("end", pa.int64())])
_VALUE, _CHANGED = "value", "changed"

_Rest = Callable[[list[list[Any]]], Iterable[tuple[bytes, bytes, bytes]]]
"""Encodes the remaining columns of each row: bytes before its key, after its namespace, and its value."""


@dataclass(frozen=True, slots=True)
class ExportedRows:
    """A keyed state converted to one of Flink.

    Attributes:
        info: Its description in a savepoint.
        description: Readable description.
        key: Encoding of its keys.
        spec: Its columns in Holdfast.
        namespace: Encoding of its namespaces.
        rest: Encodes the columns other than keys and namespaces.
    """

    info: bytes
    description: str
    key: WrittenType
    max_parallelism: int
    spec: TableSpec
    namespace: WrittenType
    rest: _Rest

    @classmethod
    def of(
        cls, state: StoredState, columns: pa.Schema, max_parallelism: int, *, has_windows: bool
    ) -> "ExportedRows":
        """Convert the description of a state with columns, of an operator that may have windows.

        Raises:
            InvalidRequestError: It can't be exported to Flink.
        """
        spec = state.table_spec
        assert spec is not None
        assert state.name is not None
        key = _of_columns(spec.key)
        if key.hash_codes is None:
            raise InvalidRequestError(f"a key of {spec.key.types} can't be a Flink key")
        namespace = NO_NAMESPACE
        is_window = spec.namespace.equals(_TIME_WINDOW)
        if len(spec.namespace):
            namespace = WINDOW_OF_TIME if is_window else _of_columns(spec.namespace)
            if has_windows and not is_window:
                raise InvalidRequestError(
                    "session windows can't be exported, because Flink stores merged windows differently"
                )
            if state.name == _CONTENTS and not has_windows:
                raise InvalidRequestError(
                    "windows without their timers would never end in Flink, and the import has dropped those"
                )
        if spec.kind == "timers":
            if state.name not in _SERVICES:
                raise InvalidRequestError("Flink has only timers of functions and windows")
            domain, service = _SERVICES[state.name]
            name, description = f"{TIMERS}{domain}_{service}", f"timers of {domain} time"
            snapshot = timer_snapshot(key, namespace)
            rest: _Rest = _timer_entries
        else:
            name = _CONTENTS if has_windows and is_window else state.name
            description = f"{state.kind}, {columns.field(_VALUE).type}"
            snapshot, rest = _content(spec, columns)
        info = keyed_info(name, spec.kind, snapshot, namespace.snapshot)
        return cls(info, description, key, max_parallelism, spec, namespace, rest)

    def entries(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, Groups]:
        """Encode keys and values of rows, and compute the key group of each.

        Raises:
            InvalidRequestError: A part of them is null, or can't be represented in Java.
        """
        width = len(self.spec.key)
        rest_start = width + len(self.spec.namespace)
        names = rows.schema.names
        check_nulls(rows, [*names[:rest_start], *({_VALUE} & set(names))])
        owners = rows.columns[:width]
        whole = owners[0] if width == 1 else pa.StructArray.from_arrays(owners, names[:width])
        assert self.key.hash_codes is not None
        groups = flink_key_groups(self.key.hash_codes(whole), self.max_parallelism)
        content = [values_of(column) for column in rows.columns]
        keys, spaces = _zip_columns(content[:width]), _zip_columns(content[width:rest_start])
        prefix = prefix_bytes(self.max_parallelism)
        has_lengths = (
            self.spec.kind != "timers" and self.key.length < 0 and self.namespace.length < 0
        )
        with_key, with_space = self.key.encode, self.namespace.encode
        written: list[bytes] = []
        values: list[bytes] = []
        with java_values():
            for group, key, space, (before, after, value) in zip(
                groups.tolist(), keys, spaces, self.rest(content[rest_start:]), strict=False
            ):
                owner, of_space = with_key(key), with_space(space)
                if has_lengths:
                    owner, of_space = owner + _length(owner), of_space + _length(of_space)
                written.append(group.to_bytes(prefix, "big") + before + owner + of_space + after)
                values.append(value)
        return pa.record_batch([written, values], schema=ENTRY), groups.astype(np.int64)


def check_nulls(rows: pa.RecordBatch, names: Iterable[str]) -> None:
    """Check that columns have no nulls. Raises `InvalidRequestError`."""
    for name in names:
        if rows.column(name).null_count:
            raise InvalidRequestError(
                f"column {name!r} has nulls, which Flink's state can't contain"
            )


@contextmanager
def java_values() -> Iterator[None]:
    try:
        yield
    except (AttributeError, TypeError, struct.error, UnicodeEncodeError):
        message = "a part of a value is null, or a string has a lone surrogate, which Flink can't represent"
        raise InvalidRequestError(message) from None


def values_of(column: pa.Array) -> list[Any]:
    """Convert a column to the values that encoders take."""
    type = plain_type(column.type)
    values: list[Any] = (column if type == column.type else column.cast(type)).to_pylist()
    return values


def _zip_columns(columns: list[list[Any]]) -> Iterable[Any]:
    """Return the values of one column, or tuples of several; endless empty tuples without columns."""
    if len(columns) == 1:
        return columns[0]
    return zip(*columns, strict=True) if columns else itertools.repeat(None)


def _of_columns(schema: pa.Schema) -> WrittenType:
    types = [written_type(field.type) for field in schema]
    return types[0] if len(types) == 1 else tuple_of_columns(types)


def _length(part: bytes) -> bytes:
    """Encode the length of a part of a key in as few bytes as possible."""
    return len(part).to_bytes(max((len(part).bit_length() + 7) // 8, 1), "little")


def _timer_entries(columns: list[list[Any]]) -> Iterable[tuple[bytes, bytes, bytes]]:
    """Encode timers, which have their time before the key, and no value."""
    return ((timer_time(time), b"", b"") for time in columns[0])


def _content(spec: TableSpec, columns: pa.Schema) -> tuple[bytes, _Rest]:
    """Return the snapshot and encoder of a state's values, which may have the time of their last use."""
    type = columns.field(_VALUE).type
    is_list, has_times = spec.kind == "list", spec.ttl_ms is not None
    if is_list:
        type = type.value_type.field("element").type if has_times else type.value_type
    whole = with_last_access(written_type(type)) if has_times else written_type(type)

    def contents(columns: list[list[Any]]) -> Iterable[Any]:
        if not has_times:
            return columns[-1]
        values, times = columns[-2:]
        if is_list:
            return [[(each["ts"], each["element"]) for each in elements] for elements in values]
        return zip(times, values, strict=True)

    if spec.kind == "map":
        sub_key = written_type(spec.sub_key.field(0).type)
        with_null, with_key = nullable_value(whole), sub_key.encode
        return map_snapshot(sub_key, whole), lambda columns: (
            (b"", with_key(name), with_null(value))
            for name, value in zip(columns[0], contents(columns), strict=True)
        )
    encode = list_without_count(whole) if is_list else whole.encode
    snapshot = list_snapshot(whole) if is_list else whole.snapshot
    return snapshot, lambda columns: ((b"", b"", encode(value)) for value in contents(columns))
