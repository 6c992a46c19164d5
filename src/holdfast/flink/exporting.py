"""Export of a Holdfast checkpoint or savepoint to a Flink savepoint, so that there is no lock-in.

`serializers.writing` encodes values, `written_streams` writes them to streams. Keys are routed by Flink's hash.
"""

import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike

import numpy as np
import pyarrow as pa

from holdfast.backends.inspection import ReadableState, StoredState, states_of
from holdfast.backends.keys import key_group_range
from holdfast.common import checkpoint_directory, uripath
from holdfast.errors import CheckpointError, InvalidRequestError
from holdfast.flink.exported_rows import (
    ENTRY,
    OF_WINDOWS,
    ExportedRows,
    check_nulls,
    java_values,
    values_of,
)
from holdfast.flink.metadata import operator_id
from holdfast.flink.serializers import encode_items, written_type
from holdfast.flink.spilled_rows import SpilledRows, SpillFile
from holdfast.flink.written_streams import (
    Entries,
    WrittenFile,
    WrittenList,
    metadata_file,
    operator_entry,
    write_keyed_state,
    write_operator_state,
)
from holdfast.locations.file_systems import create_file, file_system_for, publish
from holdfast.locations.metadata import StoredOperator
from holdfast.locations.storages import load_checkpoint, resolve_pointer

_METADATA = "_metadata"
_ROWS, _PIECE_BYTES = 1 << 12, 2 << 20
_ELEMENT = pa.schema([("element", pa.binary())])


def export_savepoint(
    pointer: str | PathLike[str],
    target: str,
    operators: Mapping[str, str] | None = None,
    *,
    allow_loss: bool = False,
) -> str:
    """Write a Flink savepoint from a Holdfast checkpoint or savepoint.

    Flink 1.11 to 2.3 restores it on any backend, at any parallelism, if the job declares the same states with the same
    types: numbers, booleans, strings and bytes; `LocalDate`, `LocalTime`, `LocalDateTime`, `Instant` for timestamps
    with a zone, and `BigDecimal`; lists and maps of these. Structs are tuples, and so is a key of several columns.
    Reducing and aggregating states are values and accumulators. A state with a time to live needs one in Flink.

    Namespaces of a start and an end are time windows. Tumbling and sliding windows are exported with their timers in
    the form of Flink's window operator, `window-contents`; Flink's job must keep the same value for each window.

    One key group is in memory at a time. Temporary files (`TMPDIR`) hold the read state, and become as large as it.

    Args:
        pointer: URI or path of the checkpoint or savepoint.
        target: URI of the directory to make the savepoint in.
        operators: Uids in the Flink job by the uids here; by default all operators with the same uids.
        allow_loss: Whether to omit states that can't be exported.

    Returns:
        Pointer to the savepoint: the URI of its directory.

    Raises:
        InvalidRequestError: A state can't be exported, such as one of session windows, or with null values.
        CheckpointNotFoundError: The checkpoint or one of its files does not exist.
        CheckpointCorruptedError: A file differs from its checksum.
        StorageUnavailableError: A read or write failed; no savepoint was written.
        StorageFullError: There is no space for temporary files.
    """
    planned = FlinkExport.of(pointer, operators, allow_loss=allow_loss)
    return planned.write(target)


@dataclass(frozen=True, slots=True)
class FlinkExport:
    """State of Holdfast converted for Flink, before it is written.

    Attributes:
        kept: Readable lines of the exported states.
        lost: Readable lines of the omitted data.
        checkpoint_id: Id of the checkpoint.
        operators: The operators with their states.
    """

    kept: list[str]
    lost: list[str]
    checkpoint_id: int
    operators: "list[_OperatorExport]"

    @classmethod
    def of(
        cls,
        pointer: str | PathLike[str],
        operators: Mapping[str, str] | None = None,
        *,
        allow_loss: bool = False,
    ) -> "FlinkExport":
        """Read the states. Arguments and errors are those of `export_savepoint`."""
        checkpoint = load_checkpoint(resolve_pointer(pointer))
        stored = checkpoint.metadata.operators
        uids = {uid: uid for uid in stored} if operators is None else operators
        unknown = sorted(uids.keys() - stored.keys())
        if unknown:
            message = f"unknown operators {unknown}; available: {sorted(stored)}"
            raise InvalidRequestError(message)
        if len(set(uids.values())) < len(uids):
            raise InvalidRequestError("several operators have the same uid in Flink")
        kept: list[str] = []
        lost = ["positions of sources, and Spark's own state"]
        lost += [f"operator {uid}" for uid in sorted(stored.keys() - uids.keys())]
        written = []
        file = SpillFile()
        for uid, name in uids.items():
            states = list(states_of(uid, stored[uid]))
            has_windows = any(state.name == OF_WINDOWS for state in states)
            export = _OperatorExport(operator_id(name), stored[uid], file, has_windows=has_windows)
            for state in states:
                try:
                    kept.append(f"{uid}/{state.label} as {name}: {export.add(state)}")
                except InvalidRequestError as error:
                    message = f"state {uid}/{state.label}: {error.args[0]}"
                    if not allow_loss:
                        raise InvalidRequestError(message) from error
                    lost.append(message)
            written.append(export)
        if not kept:
            raise InvalidRequestError(f"no state would be exported: {'; '.join(lost)}")
        return cls(kept, lost, checkpoint.checkpoint_id, written)

    def write(self, target: str) -> str:
        """Write the savepoint to a directory; returns its pointer. Errors are those of `export_savepoint`."""
        directory = uripath.join(
            checkpoint_directory(target), f"savepoint-flink-{uuid.uuid4().hex[:12]}"
        )
        file_system = file_system_for(directory)
        try:
            file_system.prepare_directory(directory)
            written = [operator.write(directory) for operator in self.operators]
            content = metadata_file(self.checkpoint_id, written)
            publish(uripath.join(directory, _METADATA), content, single_writer=True)
        except CheckpointError:
            file_system.delete_tree(directory)
            raise
        return directory


class _OperatorExport:
    """An operator with its states as bytes by key group or subtask of Flink, before it is written."""

    def __init__(
        self, id: str, operator: StoredOperator, file: SpillFile, *, has_windows: bool
    ) -> None:
        self._id = id
        self._operator = operator
        self._file = file
        self._has_windows = has_windows
        self._lists: dict[str, WrittenList] = {}
        self._keyed: list[tuple[ExportedRows, SpilledRows]] = []

    def add(self, state: StoredState) -> str:
        """Add a state; returns a readable description of the result. Raises `InvalidRequestError`."""
        if state.name is None:
            raise InvalidRequestError("state in a custom format can't be exported to Flink")
        readable = state.readable()
        foreign = [column.stored_name for column in readable.content if column.kind == "pickle"]
        if foreign:
            raise InvalidRequestError(f"{foreign[0]} can't be exported to Java")
        if state.is_keyed:
            return self._add_keyed(state, readable)
        of_kind = self._broadcast if state.kind == "broadcast" else self._list
        self._lists[state.name] = of_kind(state.kind, readable)
        return f"{state.kind}, {readable.schema.field('value').type}"

    def write(self, directory: str) -> bytes:
        """Write the states to files of a directory; returns the operator's entry for the metadata."""
        operator = self._operator
        subtasks = []
        for subtask in range(operator.parallelism):
            lists = keyed = None
            if self._lists:
                with _file(directory, f"{self._id}-{subtask}-operator") as file:
                    lists = write_operator_state(file, self._lists, subtask)
            if self._keyed:
                with _file(directory, f"{self._id}-{subtask}-keyed") as file:
                    keyed = self._write_keyed(file, subtask)
            subtasks.append((lists, keyed))
        return operator_entry(self._id, operator.parallelism, operator.max_parallelism, subtasks)

    def _write_keyed(self, file: WrittenFile, subtask: int) -> bytes:
        operator = self._operator
        own = key_group_range(operator.max_parallelism, operator.parallelism, subtask)
        first, end = own.start_key_group, own.end_key_group + 1
        infos = [exported.info for exported, _ in self._keyed]
        snapshot = self._keyed[0][0].key.snapshot
        groups = _by_group([rows for _, rows in self._keyed], first, end)
        return write_keyed_state(file, snapshot, infos, first, groups)

    def _broadcast(self, kind: str, readable: ReadableState) -> WrittenList:
        names = ("key", "value")
        types = [written_type(readable.schema.field(name).type) for name in names]
        entries: list[bytes] = []
        for rows in readable.batches():
            check_nulls(rows, names)
            with java_values():
                pairs = zip(*(values_of(rows.column(name)) for name in names), strict=True)
                entries += [types[0].encode(key) + types[1].encode(value) for key, value in pairs]
        roles = ("KEY_SERIALIZER", "VALUE_SERIALIZER")
        snapshots = dict(zip(roles, [type.snapshot for type in types], strict=True))
        copy = [encode_items(entries)]
        return WrittenList(kind, snapshots, lambda _subtask: copy)

    def _list(self, kind: str, readable: ReadableState) -> WrittenList:
        element = written_type(readable.schema.field("value").type)
        elements = SpilledRows(_ELEMENT, self._operator.parallelism, self._file)
        for rows in _pieces(readable):
            check_nulls(rows, ["value"])
            with java_values():
                written = [element.encode(value) for value in values_of(rows.column("value"))]
            subtasks = rows.column("subtask").to_numpy().astype(np.int64)
            elements.add(pa.record_batch([written], schema=_ELEMENT), subtasks)
        elements.finish()

        def own(subtask: int) -> Iterator[bytes]:
            for _, rows in elements.blocks(subtask, subtask + 1):
                yield from rows.column(0).to_pylist()

        return WrittenList(kind, {"VALUE_SERIALIZER": element.snapshot}, own)

    def _add_keyed(self, state: StoredState, readable: ReadableState) -> str:
        columns = pa.schema([field for field in readable.schema if field.name != "subtask"])
        groups = self._operator.max_parallelism
        exported = ExportedRows.of(state, columns, groups, has_windows=self._has_windows)
        if self._keyed and not self._keyed[0][0].spec.key.equals(exported.spec.key):
            raise InvalidRequestError("states of one operator have different keys")
        rows = SpilledRows(ENTRY, groups, self._file)
        for batch in _pieces(readable):
            rows.add(*exported.entries(batch.drop_columns(["subtask"])))
        rows.finish()
        self._keyed.append((exported, rows))
        return exported.description


def _pieces(readable: ReadableState) -> Iterator[pa.RecordBatch]:
    """Read the rows of a state in batches small enough for Python objects."""
    for batch in readable.batches():
        step = max(1, int(len(batch) * _PIECE_BYTES / max(1, batch.nbytes)))
        for start in range(0, len(batch), step):
            yield batch.slice(start, step)


def _by_group(
    states: list[SpilledRows], first: int, end: int
) -> Iterator[Iterator[tuple[int, Entries]]]:
    """Yield the entries of each key group, by the number of their state."""
    sources = [rows.by_group(first, end) for rows in states]
    ahead = [next(source, None) for source in sources]

    def of_group(group: int) -> Iterator[tuple[int, Entries]]:
        for number, source in enumerate(sources):
            waiting = ahead[number]
            if waiting is not None and waiting[0] == group:
                yield number, _entries(waiting[1])
                ahead[number] = next(source, None)

    return (of_group(group) for group in range(first, end))


def _entries(rows: pa.Table) -> Iterable[tuple[bytes, bytes]]:
    for batch in rows.to_batches(max_chunksize=_ROWS):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


@contextmanager
def _file(directory: str, name: str) -> Iterator[WrittenFile]:
    """Write a file of a directory, which appears when the block ends."""
    uri = uripath.join(directory, name)
    with create_file(file_system_for(uri), uri) as write:
        yield WrittenFile(name, write)
