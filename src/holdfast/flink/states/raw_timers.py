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
    Serializer,
    UnknownSnapshotError,
    not_readable,
    read_snapshot,
    reading,
)
from holdfast.flink.state_files import StateFiles
from holdfast.flink.states.entries import Columns, constant

_MAGIC = 0xF1CD859F
_VERSION = 2
_DOMAINS = ("event", "processing")

_Arrays = list[tuple[str, pa.Array]]


def timers_parts(handle: KeyGroupsHandle, files: StateFiles) -> "list[TimersPart]":
    """Read the timers of a subtask for their types; returns a part for each service. Raises `CheckpointError`."""
    services = {
        service: tuple((name, array.type) for name, array in arrays)
        for _, service, arrays in _timers(handle, files)
    }
    return [
        TimersPart(handle, service, (("key_group", pa.int32()), *columns), files)
        for service, columns in services.items()
    ]


@dataclass(frozen=True, slots=True)
class TimersPart:
    """Timers of a service, named as a state, in the raw keyed state of a subtask."""

    handle: KeyGroupsHandle
    service: str
    columns: Columns
    files: StateFiles

    def batches(self, *, as_bytes: bool) -> Iterator[pa.RecordBatch]:  # noqa: ARG002  # always decoded
        for group, service, columns in _timers(self.handle, self.files):
            if service == self.service:
                names, arrays = zip(*columns, strict=True)
                key_group = constant(group, len(arrays[0]))
                yield pa.record_batch([key_group, *arrays], ["key_group", *names])


def _timers(handle: KeyGroupsHandle, files: StateFiles) -> Iterator[tuple[int, str, _Arrays]]:
    """Yield each key group, service and columns of its timers."""
    with files.open(handle.stream) as stream:
        for group, start, end in handle.extents(stream.size, min_offset=0):
            if start < end:
                source = files.input(stream, start, end)
                with reading(f"timers of key group {group}"):
                    timers = list(_services(source))
                for name, columns in timers:
                    yield group, name, columns


def _services(source: DataInput) -> Iterator[tuple[str, _Arrays]]:
    source.expect(_MAGIC, "raw keyed state with timers")
    if (version := source.read_int()) != _VERSION:
        message = (
            f"timers are stored in version {version}; Holdfast supports only version {_VERSION}"
        )
        raise UnsupportedFormatError(message)
    for _ in range(source.count(2)):
        name = source.utf()
        serializers = [_readable(source) for _ in range(2)]
        for domain in _DOMAINS:
            if (count := source.count(9)) > 0:
                yield f"{domain}_{name}", _columns(source, count, *serializers)


def _readable(source: DataInput) -> Serializer:
    try:
        serializer = read_snapshot(source)
    except UnknownSnapshotError as unknown:
        raise not_readable(unknown.java_class) from unknown
    if serializer.unreadable:
        raise not_readable(serializer.unreadable)
    return serializer


def _columns(source: DataInput, count: int, key: Serializer, namespace: Serializer) -> _Arrays:
    keys, namespaces, times = [], [], []
    for _ in range(count):
        owner, source.position = key.read(source.data, source.position)
        space, source.position = namespace.read(source.data, source.position)
        keys.append(owner)
        namespaces.append(space)
        times.append(source.read_long())
    columns = [("key", pa.array(keys, key.type))]
    if not pa.types.is_null(namespace.type):
        columns.append(("namespace", pa.array(namespaces, namespace.type)))
    columns.append(("timestamp", pa.array(times, pa.int64())))
    return columns
