"""An open savepoint or checkpoint of Flink: its operators, their states, and the rows of states.

The metadata is read when it is opened, descriptions of an operator's states when they are requested, and rows one key
group at a time. Start here.
"""

import os
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.common import fill, uripath
from holdfast.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    UnreadableStateError,
)
from holdfast.flink.handles import IncrementalHandle
from holdfast.flink.kafka_offsets import SOURCES, never_read, positions, starting_offsets
from holdfast.flink.metadata import FlinkMetadata, FlinkOperator, operator_id, parse_metadata
from holdfast.flink.state_files import StateFiles
from holdfast.flink.states import TIMERS, WITH_TIMERS, OperatorStateReader, StoredState
from holdfast.locations.file_systems import file_system_for

_FIRST_OF_FLINK_2 = 5  # version of the metadata
_METADATA = "_metadata"
_MAX_METADATA_BYTES = 1 << 31

_OPERATORS = pa.schema(
    [
        *((name, pa.string()) for name in ("operator", "id", "uid", "name")),
        *((name, pa.int32()) for name in ("parallelism", "max_parallelism", "subtasks")),
        ("in_flight_bytes", pa.int64()),
    ]
)
_TYPES = ("key", "namespace", "value")
_STATES = pa.schema(
    [
        *((name, pa.string()) for name in ("operator", "state", "kind", *_TYPES)),
        ("has_ttl", pa.bool_()),
        ("has_known_hash", pa.bool_()),
        ("failure", pa.string()),
    ]
)


class FlinkSavepoint:
    """A savepoint or retained checkpoint of a Flink job; `holdfast.flink.open_savepoint` returns it.

    An operator is named by its uid, its hexadecimal id, or its name if that is unique.

    Attributes:
        pointer: URI of its metadata.
        metadata_version: Version of the metadata format, which depends on the version of Flink.
        checkpoint_id: Id of the checkpoint.
    """

    def __init__(
        self, pointer: str, metadata: FlinkMetadata, files: StateFiles, uids: Iterable[str]
    ) -> None:
        self.pointer = pointer
        self.metadata_version = metadata.version
        self.checkpoint_id = metadata.checkpoint_id
        self._operators = metadata.operators
        self._files = files
        self._uids = {operator_id(uid): uid for uid in uids}
        self._states: dict[str, OperatorStateReader] = {}

    def operators(self) -> pa.Table:
        """Return the operators, one row each.

        `operator` is the uid if it is known, otherwise the id. Savepoints before Flink 2.0 have no uids and names;
        pass them to `open_savepoint(..., uids=)`. `subtasks` counts subtasks with state. `in_flight_bytes` is the size of
        rows between operators in an unaligned checkpoint, which are not part of any state.
        """
        rows = [
            {
                "operator": self._label(operator),
                "id": operator.id,
                "uid": self._uid(operator) or None,
                "name": operator.name or None,
                "parallelism": operator.parallelism,
                "max_parallelism": operator.max_parallelism,
                "subtasks": len(operator.subtasks),
                "in_flight_bytes": operator.in_flight_bytes,
            }
            for operator in self._operators
        ]
        return pa.Table.from_pylist(rows, _OPERATORS)

    def states(self, operator: str | None = None) -> pa.Table:
        """Return the states of all operators, or of one, one row each.

        `key`, `namespace` and `value` are Arrow types, or null. `has_ttl` is true if values have a time to live,
        `has_known_hash` if `check_keys` of `read_state` can check the keys. `failure` is the reason why a state can't be
        read, as far as its description shows; errors of single values appear when they are read.

        Raises:
            InvalidRequestError: The operator does not exist, or files are in another store.
        """
        chosen = self._operators if operator is None else [self._operator(operator)]
        rows = [
            {
                "operator": self._label(each),
                "state": state.name or None,
                "kind": state.kind,
                **{name: str(type) for name, type in state.columns if name in _TYPES},
                "has_ttl": state.has_ttl,
                "has_known_hash": state.has_known_hash,
                "failure": state.failure or state.incomplete or None,
            }
            for each in chosen
            for state in self._states_of(each).states
        ]
        return pa.Table.from_pylist(rows, _STATES)

    def read_state(
        self,
        operator: str,
        state: str,
        *,
        kind: str | None = None,
        subtask: int | None = None,
        explode: bool = False,
        as_bytes: bool = False,
        check_keys: bool = False,
        types: Mapping[str, str] | None = None,
    ) -> pa.Table:
        """Read a state as a table.

        List and union states have one row per element: `subtask` and `value`. Broadcast states have rows of `key` and
        `value`, from one subtask's copy. Keyed states have one row per key: `key_group`, `key`, `namespace` if the state
        has one, and `value`, which is a list or map for such states. Timers have `timestamp` in milliseconds instead.

        Args:
            operator: Uid, id or name of the operator.
            state: Name of the state.
            kind: Type of the state as in `states`, if an operator state and a keyed state have the same name.
            subtask: Index of the only subtask to read.
            explode: Whether to return one row per element of a list, with `value`, or entry of a map, with `map_key`
                and `map_value`.
            as_bytes: Whether to return values as stored, without decoding. Keys and namespaces are decoded. The heap
                backend's own format has no lengths, so it does not support this.
            check_keys: Whether to raise an error for keys in other key groups than those of Flink's hash. Flink has no
                checksums, and this detects corruption. It applies to numbers, strings, and tuples of these; other keys
                pass, because their hash is defined by a class of the job.
            types: Type of `value` in state of PyFlink, which Flink stores as bytes, and for a map also that of
                `map_key`, such as `long`, `string`, `row<long, string>`, `list<double>`, or `pickled` for the bytes of
                pickles. A value state of PyFlink is a list of one element.

        Raises:
            InvalidRequestError: The state does not exist, or files are in another store.
            UnreadableStateError: It contains values of an unknown class.
            CheckpointCorruptedError: It is corrupted.
            CheckpointNotFoundError: A file is missing.
        """
        stored = self._state(operator, state, kind, types)
        batches = list(
            _batches(stored, subtask, explode=explode, as_bytes=as_bytes, check_keys=check_keys)
        )
        if batches:
            return pa.Table.from_batches(batches).combine_chunks()
        empty = pa.schema(list(stored.columns)).empty_table()
        return _explode(empty) if explode else empty

    def iter_state(
        self,
        operator: str,
        state: str,
        *,
        kind: str | None = None,
        subtask: int | None = None,
        explode: bool = False,
        as_bytes: bool = False,
        check_keys: bool = False,
        types: Mapping[str, str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Read a state in batches: one key group of a keyed state, or several elements of a subtask.

        Arguments and errors are those of `read_state`; errors are raised while the batches are read.
        """
        stored = self._state(operator, state, kind, types)
        return _batches(stored, subtask, explode=explode, as_bytes=as_bytes, check_keys=check_keys)

    def timers(self, operator: str, *, check_keys: bool = False) -> pa.Table:
        """Read the timers of an operator: `service`, `domain` (`event` or `processing`), `key_group`, `key`, `namespace`, `timestamp`.

        The service of a function's timers is `user-timers`, that of windows is `window-timers`.

        Args:
            operator: Uid, id or name of the operator.
            check_keys: See `read_state`.

        Raises like `read_state`.
        """
        tables = []
        for state in self._states_of(self._operator(operator)).states:
            if not state.name and state.kind in WITH_TIMERS:
                raise UnreadableStateError(state.failure)
            if not state.name.startswith(TIMERS):
                continue
            domain, _, service = state.name.removeprefix(TIMERS).partition("_")
            for batch in state.batches(None, as_bytes=False, check_keys=check_keys):
                table = pa.Table.from_batches([batch])
                for name, text in (("domain", domain), ("service", service)):
                    table = table.add_column(0, name, pa.repeat(pa.scalar(text), len(table)))
                tables.append(table)
        if not tables:
            return pa.schema([("service", pa.string()), ("domain", pa.string())]).empty_table()
        return pa.concat_tables(tables, promote_options="default").combine_chunks()

    def source_offsets(self, operator: str) -> str:
        """Return the next offsets of a Kafka source, as JSON for `startingOffsets` of Spark's source.

        They follow the last records that are reflected in the state. Partitions that the source had not discovered yet
        are missing. Spark needs all partitions of a topic, so add those with -2, the beginning.

        Raises:
            InvalidRequestError: The operator is not a `KafkaSource` or `FlinkKafkaConsumer`, or a partition was
                never read, so that its offset isn't in the savepoint.

        Other errors are those of `read_state`.
        """
        source = self._operator(operator)
        names = [state.name for state in self._states_of(source).states if state.name in SOURCES]
        if len(names) != 1:
            raise InvalidRequestError(
                f"operator {operator!r} is not a source with offsets in state"
            )
        values = self.read_state(operator, names[0]).column("value")
        places = positions(names[0], values)
        if source.coordinator is not None:
            with self._files.open(source.coordinator) as stream:
                places += never_read(stream.read(0, stream.size), places)
        return starting_offsets(places)

    def warnings(self) -> list[str]:
        """Return descriptions of data that the job had, or may have had, and that is not in the states."""
        warnings = [
            f"operator {self._label(operator)} has {operator.in_flight_bytes} bytes of rows in flight, which are not in "
            "any state; take a savepoint, or an aligned checkpoint"
            for operator in self._operators
            if operator.in_flight_bytes
        ]
        labels = self._perhaps_without_timers()
        if labels:
            warnings.append(
                f"the RocksDB files of {', '.join(labels)} have no timers; if the job keeps timers on the "
                "heap, Flink has left them out of this native savepoint: take a canonical one"
            )
        return warnings

    def _perhaps_without_timers(self) -> list[str]:
        """Return the operators with RocksDB files if none of them has timers: Flink loses those on the heap."""
        operators = [
            operator
            for operator in self._operators
            if any(isinstance(each.keyed, IncrementalHandle) for each in operator.subtasks.values())
        ]
        states = [state for operator in operators for state in self._states_of(operator).states]
        if any(state.name.startswith(TIMERS) for state in states):
            return []
        return [self._label(operator) for operator in operators]

    def _state(
        self, operator: str, name: str, kind: str | None, types: Mapping[str, str] | None
    ) -> StoredState:
        stored = self._states_of(self._operator(operator)).states
        named = [state for state in stored if state.name == name and kind in {None, state.kind}]
        if len(named) == 1:
            return named[0].with_types(types) if types else named[0]
        if named:
            kinds = [state.kind for state in named]
            message = (
                f"operator {operator!r} has several states {name!r}; kind must be one of {kinds}"
            )
            raise InvalidRequestError(message)
        failures = [state.failure for state in stored if not state.name]
        there = ", ".join(state.name for state in stored if state.name) or "none"
        why = f"; {failures[0]}" if failures else ""
        label = name if kind is None else f"{kind} {name}"
        raise InvalidRequestError(
            f"operator {operator!r} has no state {label!r}; it has {there}{why}"
        )

    def _states_of(self, operator: FlinkOperator) -> OperatorStateReader:
        if operator.id not in self._states:
            self._states[operator.id] = OperatorStateReader(operator, self._files)
        return self._states[operator.id]

    def _operator(self, name: str) -> FlinkOperator:
        for operator in self._operators:
            if name in {operator.id, operator.uid or None} or operator_id(name) == operator.id:
                return operator
        named = [operator for operator in self._operators if operator.name == name]
        if len(named) == 1:
            return named[0]
        several = f"name of {len(named)} operators" if named else "unknown operator"
        raise InvalidRequestError(f"{several}: {name!r}; see `operators` for all")

    def _uid(self, operator: FlinkOperator) -> str:
        return operator.uid or self._uids.get(operator.id, "")

    def _label(self, operator: FlinkOperator) -> str:
        return self._uid(operator) or operator.id


def open_savepoint(
    pointer: str | os.PathLike[str],
    *,
    moved: Mapping[str, str] | None = None,
    uids: Iterable[str] = (),
) -> FlinkSavepoint:
    """Open a savepoint or retained checkpoint of a Flink job, of Flink 1.8 to 2.3.

    Args:
        pointer: URI or path of its directory, or of its `_metadata`, in any store that Holdfast supports.
        moved: New beginnings of URIs of moved files, by their old ones. Not needed for savepoints that were moved as a
            whole.
        uids: Uids of operators, to show them for savepoints before Flink 2.0, which have only ids.

    Raises:
        CheckpointNotFoundError: The savepoint does not exist.
        UnsupportedFormatError: It isn't from Flink, or its version is unknown.
        CheckpointCorruptedError: Its metadata is corrupted.
        InvalidRequestError: The pointer is not a valid URI.
    """
    uri = uripath.normalize(pointer)
    if uripath.name(uri) != _METADATA:
        uri = uripath.join(uri, _METADATA)
    try:
        with file_system_for(uri).open(uri) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            if size > _MAX_METADATA_BYTES:
                raise InvalidRequestError(f"metadata of {size} bytes is too large", uri)
            view = memoryview(bytearray(size))
            data = bytes(view[: fill(file, view)])
    except CheckpointNotFoundError as error:
        raise CheckpointNotFoundError(
            "no savepoint or checkpoint of Flink exists here", uri
        ) from error
    try:
        metadata = parse_metadata(data)
    except CheckpointError as error:
        raise type(error)(str(error.args[0]), uri) from error
    is_of_flink_1 = metadata.version < _FIRST_OF_FLINK_2
    files = StateFiles(uripath.parent(uri), moved or {}, is_of_flink_1=is_of_flink_1)
    return FlinkSavepoint(uri, metadata, files, uids)


def _batches(
    state: StoredState, subtask: int | None, *, explode: bool, as_bytes: bool, check_keys: bool
) -> Iterator[pa.RecordBatch]:
    for batch in state.batches(subtask, as_bytes=as_bytes, check_keys=check_keys):
        yield from _explode(pa.Table.from_batches([batch])).to_batches() if explode else [batch]


def _explode(table: pa.Table) -> pa.Table:
    """Return a table with one row per element of the lists or maps in the last column."""
    if not table.num_columns or table.schema.names[-1] != "value":
        return table
    type = table.schema.types[-1]
    if not (pa.types.is_list(type) or pa.types.is_map(type)):
        return table
    values = table.column("value").combine_chunks()
    others = table.drop_columns(["value"])
    is_map = pa.types.is_map(type)
    if is_map:
        values = values.cast(
            pa.list_(pa.struct([("key", type.key_type), ("value", type.item_type)]))
        )
    rows = others.take(pc.list_parent_indices(values))
    flat = pc.list_flatten(values)
    if not is_map:
        return rows.append_column("value", flat)
    for place, name in enumerate(("map_key", "map_value")):
        rows = rows.append_column(name, pc.struct_field(flat, place))
    return rows
