"""A savepoint of Flink, made of a checkpoint or savepoint of Holdfast, so that nobody has to stay.

`serializers.writing` makes bytes of values, `written_streams` streams of these. Keys are dealt by Flink's hash.
"""

import struct
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

import pyarrow as pa

from holdfast.backends.inspection import StoredState, states_of
from holdfast.backends.keys import flink_key_groups, key_group_range
from holdfast.common import checkpoint_directory, uripath
from holdfast.errors import CheckpointError, InvalidRequestError
from holdfast.flink.descriptions import TIMERS
from holdfast.flink.keyed_state import prefix_bytes
from holdfast.flink.operator_ids import operator_id
from holdfast.flink.serializers import (
    NO_NAMESPACE,
    Encode,
    WrittenType,
    counted,
    list_snapshot,
    list_without_count,
    map_snapshot,
    nullable_value,
    timer_snapshot,
    timer_time,
    tuple_of_columns,
    with_last_access,
    written_type,
)
from holdfast.flink.written_streams import (
    Entries,
    WrittenFile,
    WrittenList,
    WrittenOperator,
    keyed_file,
    keyed_info,
    metadata_file,
    operator_file,
)
from holdfast.locations.file_systems import file_system_for, publish
from holdfast.locations.metadata import StoredOperator
from holdfast.locations.storages import load_checkpoint, resolve_pointer

_OF_FUNCTIONS = "user-timers"
_DOMAINS = {"_timers/event/timers": "event", "_timers/processing/timers": "processing"}
_METADATA = "_metadata"


def export_savepoint(
    pointer: str | PathLike[str],
    target: str,
    operators: Mapping[str, str] | None = None,
    *,
    allow_loss: bool = False,
) -> str:
    """Make a savepoint for Flink of a checkpoint or savepoint of Holdfast.

    Flink 1.11 to 2.3 restores it on any backend, at any parallelism, if the job asks for the same states with the same
    types: of numbers, booleans, texts and bytes, their lists and maps; structs are tuples, and a key of several columns
    is a tuple, too. Reducing and aggregating states are values, and accumulators. A state with a time to live needs one
    in Flink. What is exported has to fit into memory.

    Args:
        pointer: URI or path of the checkpoint or savepoint.
        target: URI of the directory to make the savepoint in.
        operators: The uid in the Flink job by the uid here; by default the same, and all operators.
        allow_loss: Whether to leave out what can't be written for Flink.

    Returns:
        Pointer to the savepoint: the URI of its directory.

    Raises:
        InvalidRequestError: A state can't be written for Flink, such as one with namespaces, or values that are null.
        CheckpointNotFoundError: There is no such checkpoint, or a state file is gone.
        CheckpointCorruptedError: What was read is not what was written.
        StorageUnavailableError: Something could not be read or written; there is no savepoint then.
    """
    planned = FlinkExport.of(pointer, operators, allow_loss=allow_loss)
    return planned.write(target)


@dataclass(frozen=True, slots=True)
class FlinkExport:
    """State of Holdfast as it will be written for Flink; nothing is written yet.

    Attributes:
        kept: What is exported, for people: a line for each state.
        lost: What is not, for people.
        checkpoint_id: Number of the checkpoint.
        operators: The operators with their files.
    """

    kept: list[str]
    lost: list[str]
    checkpoint_id: int
    operators: list[WrittenOperator]

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
            message = f"there are no operators {unknown}; there are {sorted(stored)}"
            raise InvalidRequestError(message)
        if len(set(uids.values())) < len(uids):
            raise InvalidRequestError("several operators are to become the same of Flink")
        kept: list[str] = []
        lost = ["what sources have read, and Spark's own state"]
        lost += [f"operator {uid}" for uid in sorted(stored.keys() - uids.keys())]
        written = []
        for uid, name in uids.items():
            export = _OperatorExport(uid, stored[uid])
            for state in states_of(uid, stored[uid]):
                try:
                    kept.append(f"{uid}/{state.label} as {name}: {export.add(state)}")
                except InvalidRequestError as error:
                    message = f"state {uid}/{state.label}: {error.args[0]}"
                    if not allow_loss:
                        raise InvalidRequestError(message) from error
                    lost.append(message)
            written.append(export.written(operator_id(name)))
        if not kept:
            raise InvalidRequestError(f"no state would be exported: {'; '.join(lost)}")
        return cls(kept, lost, checkpoint.checkpoint_id, written)

    def write(self, target: str) -> str:
        """Write the savepoint into a directory; gives the pointer to it. Errors are those of `export_savepoint`."""
        directory = uripath.join(
            checkpoint_directory(target), f"savepoint-flink-{uuid.uuid4().hex[:12]}"
        )
        file_system = file_system_for(directory)
        try:
            file_system.prepare_directory(directory)
            for operator in self.operators:
                for files in operator.subtasks:
                    for file in filter(None, files):
                        _write(uripath.join(directory, file.name), file.data)
            content = metadata_file(self.checkpoint_id, self.operators)
            publish(uripath.join(directory, _METADATA), content, single_writer=True)
        except CheckpointError:
            file_system.delete_tree(directory)
            raise
        return directory


class _OperatorExport:
    """Gathers the states of an operator, by subtask of Flink."""

    def __init__(self, uid: str, operator: StoredOperator) -> None:
        self._uid = uid
        self._operator = operator
        self._lists: list[dict[str, WrittenList]] = [{} for _ in range(operator.parallelism)]
        self._groups: list[dict[int, Entries]] = [{} for _ in range(operator.max_parallelism)]
        self._infos: list[bytes] = []
        self._key: tuple[pa.Schema, WrittenType] | None = None

    def add(self, state: StoredState) -> str:
        """Add a state; says what it becomes, for people. Raises `InvalidRequestError`."""
        if state.name is None:
            raise InvalidRequestError("bytes of a format of the job's own are nothing to Flink")
        readable = state.readable()
        foreign = [column.stored_name for column in readable.content if column.kind == "pickle"]
        if foreign:
            raise InvalidRequestError(f"{foreign[0]} is nothing to Java")
        rows = pa.Table.from_batches(readable.batches(), readable.schema).combine_chunks()
        if state.is_keyed:
            return self._add_keyed(state, rows)
        if state.kind == "broadcast":
            types = [written_type(rows.schema.field(name).type) for name in ("key", "value")]
            _check_nulls(rows, ["key", "value"])
            pairs = zip(*(rows.column(name).to_pylist() for name in ("key", "value")), strict=True)
            entries = [types[0].encode(key) + types[1].encode(value) for key, value in pairs]
            roles = dict(zip(("KEY_SERIALIZER", "VALUE_SERIALIZER"), types, strict=True))
            snapshots = {role: type.snapshot for role, type in roles.items()}
            for subtask in self._lists:
                subtask[state.name] = WrittenList(state.kind, snapshots, [counted(entries)])
        else:
            element = written_type(rows.schema.field("value").type)
            _check_nulls(rows, ["value"])
            elements: list[list[bytes]] = [[] for _ in self._lists]
            values = zip(
                rows.column("subtask").to_pylist(), rows.column("value").to_pylist(), strict=True
            )
            for index, value in values:
                elements[index].append(_encoded(element.encode, value))
            snapshots = {"VALUE_SERIALIZER": element.snapshot}
            for subtask, own in zip(self._lists, elements, strict=True):
                subtask[state.name] = WrittenList(state.kind, snapshots, own)
        return f"{state.kind}, {rows.schema.field('value').type}"

    def written(self, id: str) -> WrittenOperator:
        """The operator with all that was added."""
        operator = self._operator
        subtasks = []
        for subtask, lists in enumerate(self._lists):
            keyed: WrittenFile | None = None
            if self._key is not None:
                groups = key_group_range(operator.max_parallelism, operator.parallelism, subtask)
                first, end = groups.start_key_group, groups.end_key_group + 1
                keyed = keyed_file(
                    f"{id}-{subtask}-keyed",
                    self._key[1].snapshot,
                    self._infos,
                    first,
                    self._groups[first:end],
                )
            name = f"{id}-{subtask}-operator"
            subtasks.append((operator_file(name, lists) if lists else None, keyed))
        return WrittenOperator(id, operator.parallelism, operator.max_parallelism, subtasks)

    def _add_keyed(self, state: StoredState, rows: pa.Table) -> str:
        spec = state.table_spec
        assert spec is not None
        assert state.name is not None
        if len(spec.namespace):
            raise InvalidRequestError(
                "it has namespaces, as windows have, whose logic is Flink's own"
            )
        if spec.kind == "timers" and state.name not in _DOMAINS:
            raise InvalidRequestError("timers of windows are Flink's own")
        rows = rows.drop_columns(["subtask"])
        names = rows.column_names[: len(spec.key)]
        types = [written_type(field.type) for field in spec.key]
        key = types[0] if len(types) == 1 else tuple_of_columns(types)
        if key.hash_codes is None:
            raise InvalidRequestError(f"a key of {spec.key.types} can't be a key of Flink")
        if self._key is not None and not self._key[0].equals(spec.key):
            raise InvalidRequestError("states of one operator are by other keys")
        _check_nulls(rows, names)
        columns = [rows.column(name).combine_chunks() for name in names]
        whole = columns[0] if len(columns) == 1 else pa.StructArray.from_arrays(columns, names)
        max_parallelism = self._operator.max_parallelism
        groups = flink_key_groups(key.hash_codes(whole), max_parallelism)
        content = _Content.of(state, spec.kind, key, rows.drop_columns(names), spec.ttl_ms)
        prefix = prefix_bytes(max_parallelism)
        keys: Iterable[Any] = iter(whole.to_pylist())
        if len(columns) > 1:
            keys = (tuple(each.values()) for each in keys)
        number = len(self._infos)
        entries: dict[int, list[tuple[bytes, bytes]]] = {}
        for group, owner, (before, after, value) in zip(
            groups.tolist(), keys, content.entries, strict=True
        ):
            name = int(group).to_bytes(prefix, "big") + before + _encoded(key.encode, owner)
            entries.setdefault(group, []).append((name + b"\0" + after, value))
        self._key = spec.key, key
        self._infos.append(
            keyed_info(content.name, spec.kind, content.snapshot, NO_NAMESPACE.snapshot)
        )
        for group, own in entries.items():
            self._groups[group][number] = own
        return content.description


@dataclass(frozen=True, slots=True)
class _Content:
    """What a keyed state holds besides its keys.

    Attributes:
        name: What it is called in Flink.
        snapshot: What a savepoint says of its values.
        description: For people.
        entries: Of each row what stands before the key, behind its namespace, and as the value.
    """

    name: str
    snapshot: bytes
    description: str
    entries: Iterator[tuple[bytes, bytes, bytes]]

    @classmethod
    def of(
        cls, state: StoredState, kind: str, key: WrittenType, rows: pa.Table, ttl_ms: int | None
    ) -> "_Content":
        assert state.name is not None
        if kind == "timers":
            domain = _DOMAINS[state.name]
            times = rows.column(0).to_pylist()
            entries = ((timer_time(time), b"", b"") for time in times)
            name = f"{TIMERS}{domain}_{_OF_FUNCTIONS}"
            return cls(name, timer_snapshot(key), f"timers of {domain} time", entries)
        values, changed = rows.column("value"), [None] * len(rows)
        if ttl_ms is not None:
            changed = rows.column("changed").combine_chunks().cast(pa.int64()).to_pylist()
        type = values.type
        _check_nulls(rows, ["value"])
        description = f"{state.kind}, {type}"
        if kind == "list":
            snapshot, encode = _of_lists(type, has_times=ttl_ms is not None)
            entries = ((b"", b"", _encoded(encode, value)) for value in values.to_pylist())
            return cls(state.name, snapshot, description, entries)
        whole = written_type(type)
        if ttl_ms is not None:
            whole = with_last_access(whole)
        contents = values.to_pylist()
        if ttl_ms is not None:
            contents = list(zip(changed, contents, strict=True))
        if kind == "map":
            sub_keys = rows.column(0)
            sub_key = written_type(sub_keys.type)
            encode = nullable_value(whole)
            pairs = zip(sub_keys.to_pylist(), contents, strict=True)
            entries = (
                (b"", _encoded(sub_key.encode, name), _encoded(encode, content))
                for name, content in pairs
            )
            return cls(state.name, map_snapshot(sub_key, whole), description, entries)
        entries = ((b"", b"", _encoded(whole.encode, content)) for content in contents)
        return cls(state.name, whole.snapshot, description, entries)


def _of_lists(type: pa.DataType, *, has_times: bool) -> tuple[bytes, Encode]:
    """What a savepoint says of lists, and what makes bytes of a list."""
    if not has_times:
        element = written_type(type.value_type)
        return list_snapshot(element), list_without_count(element)
    timed = with_last_access(written_type(type.value_type.field("element").type))
    encode = list_without_count(timed)
    return list_snapshot(timed), lambda elements: encode(
        [(element["ts"], element["element"]) for element in elements]
    )


def _encoded(encode: Encode, value: Any) -> bytes:
    try:
        return encode(value)
    except (AttributeError, TypeError, struct.error, UnicodeEncodeError):
        message = (
            "a part of a value is null, or a text has a lone surrogate, which Flink can't have"
        )
        raise InvalidRequestError(message) from None


def _check_nulls(rows: pa.Table, names: list[str]) -> None:
    for name in names:
        if rows.column(name).null_count:
            raise InvalidRequestError(f"column {name!r} has nulls, which Flink's state can't have")


def _write(uri: str, data: bytes) -> None:
    stream = file_system_for(uri).create(uri)
    try:
        stream.write(data)
        stream.commit()
    except BaseException:
        stream.abort()
        raise
