"""Timers on the heap in jobs with RocksDB: raw keyed state next to the files of RocksDB.

    group    f1cd859f, int 2, int n * service
    service  utf name, snapshot of the key, snapshot of the namespace, int n * event timer, int n * processing timer
    timer    key, namespace, long

Source:
    Flink, InternalTimerServiceSerializationProxy and InternalTimersSnapshotReaderWriters (2.3.0).
"""

from collections.abc import Iterator

import pyarrow as pa

from holdfast.errors import UnsupportedFormatError
from holdfast.flink.binary import DataInput
from holdfast.flink.metadata import KeyGroupsHandle, StateFiles
from holdfast.flink.serializers import (
    Serializer,
    UnknownSnapshotError,
    not_readable,
    read_snapshot,
    reading,
)

_MAGIC = 0xF1CD859F
_VERSION = 2
DOMAINS = ("event", "processing")

Timers = tuple[int, str, list[tuple[str, pa.Array]]]
"""A key group, the name of the timer service as a state, and columns of its timers."""


def raw_timers(handle: KeyGroupsHandle, files: StateFiles) -> Iterator[Timers]:
    """Read the timers of a subtask by key group.

    Raises:
        CheckpointError: They can't be read.
    """
    with files.open(handle.stream) as stream:
        for group, start, end in handle.extents(stream.size, min_offset=0):
            if start < end:
                source = files.input(stream, start, end)
                with reading(f"timers of key group {group}"):
                    timers = list(_services(source))
                for name, columns in timers:
                    yield group, name, columns


def _services(source: DataInput) -> Iterator[tuple[str, list[tuple[str, pa.Array]]]]:
    source.expect(_MAGIC, "raw keyed state with timers")
    if (version := source.read_int()) != _VERSION:
        message = (
            f"timers are stored in version {version}; Holdfast supports only version {_VERSION}"
        )
        raise UnsupportedFormatError(message)
    for _ in range(source.count(2)):
        name = source.utf()
        serializers = [_readable(source) for _ in range(2)]
        for domain in DOMAINS:
            columns = _timers(source, *serializers)
            if columns is not None:
                yield f"{domain}_{name}", columns


def _readable(source: DataInput) -> Serializer:
    try:
        serializer = read_snapshot(source)
    except UnknownSnapshotError as unknown:
        raise not_readable(unknown.java_class) from unknown
    if serializer.unreadable:
        raise not_readable(serializer.unreadable)
    return serializer


def _timers(
    source: DataInput, key: Serializer, namespace: Serializer
) -> list[tuple[str, pa.Array]] | None:
    count = source.count(9)
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
    return columns if count else None
