"""Timers on the heap in jobs with RocksDB: raw keyed state next to the files of RocksDB.

    group    f1cd859f, int 2, int n * service
    service  utf name, snapshot of the key, snapshot of the namespace, int n * event timer, int n * processing timer
    timer    key, namespace, long

Source:
    Flink, InternalTimerServiceSerializationProxy and InternalTimersSnapshotReaderWriters (2.3.0).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from holdfast.errors import UnsupportedFormatError
from holdfast.flink.binary import DataInput
from holdfast.flink.handles import KeyGroupsHandle
from holdfast.flink.serializers import (
    LONG,
    Serializer,
    UnknownSnapshotError,
    list_of,
    not_readable,
    read_snapshot,
    reading,
    struct_of,
)
from holdfast.flink.state_files import StateFiles
from holdfast.flink.states.entries import Columns, constant

_MAGIC = 0xF1CD859F
_VERSION = 2
_DOMAINS = ("event", "processing")


def timers_parts(handle: KeyGroupsHandle, files: StateFiles) -> "list[TimersPart]":
    """Read the timers of a subtask for their types; returns a part for each service. Raises `CheckpointError`."""
    schemas = {service: timers.schema for service, timers in _timers(handle, files)}
    return [
        TimersPart(handle, service, tuple((field.name, field.type) for field in schema), files)
        for service, schema in schemas.items()
    ]


@dataclass(frozen=True, slots=True)
class TimersPart:
    """Timers of a service, named as a state, in the raw keyed state of a subtask."""

    handle: KeyGroupsHandle
    service: str
    columns: Columns
    files: StateFiles

    def batches(self, *, as_bytes: bool) -> Iterator[pa.RecordBatch]:  # noqa: ARG002  # always decoded
        for service, timers in _timers(self.handle, self.files):
            if service == self.service:
                yield timers


def _timers(handle: KeyGroupsHandle, files: StateFiles) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the timers of each service in each key group."""
    with files.open(handle.stream) as stream:
        for group, start, end in handle.extents(stream.size, min_offset=0):
            if start < end:
                source = files.input(stream, start, end)
                with reading(f"timers of key group {group}"):
                    services = list(_services(source, group))
                yield from services


def _services(source: DataInput, group: int) -> Iterator[tuple[str, pa.RecordBatch]]:
    source.expect(_MAGIC, "raw keyed state with timers")
    if (version := source.read_int()) != _VERSION:
        message = (
            f"timers are stored in version {version}; Holdfast supports only version {_VERSION}"
        )
        raise UnsupportedFormatError(message)
    for _ in range(source.count(2)):
        name = source.utf()
        key, namespace = _readable(source), _readable(source)
        timer = struct_of({"key": key, "namespace": namespace, "timestamp": LONG})
        read = list_of(timer).read
        for domain in _DOMAINS:
            timers, source.position = read(source.data, source.position)
            if timers:
                rows = pa.RecordBatch.from_struct_array(pa.array(timers, timer.type))
                if pa.types.is_null(namespace.type):
                    rows = rows.drop_columns(["namespace"])
                groups = constant(group, len(rows))
                yield f"{domain}_{name}", rows.add_column(0, "key_group", groups)


def _readable(source: DataInput) -> Serializer:
    try:
        serializer = read_snapshot(source)
    except UnknownSnapshotError as unknown:
        raise not_readable(unknown.java_class) from unknown
    if serializer.unreadable:
        raise not_readable(serializer.unreadable)
    return serializer
