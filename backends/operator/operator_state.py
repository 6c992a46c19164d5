"""The operator state backend: the states of one subtask that don't belong to a key."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import pyarrow as pa

from holdfast.backends.arrow import compact_chunks
from holdfast.backends.descriptors import ListStateDescriptor, MapStateDescriptor
from holdfast.backends.operator.broadcast_state import BroadcastState
from holdfast.backends.operator.list_state import ListState
from holdfast.backends.serializers import Serializer, migrated_column, stored_serializer
from holdfast.backends.snapshot import (
    LIST_COLUMNS,
    MAP_COLUMNS,
    AsyncSnapshot,
    Compression,
    SnapshotResult,
    SnapshotStreams,
    WrittenState,
    WrittenStates,
    has_same_form,
    location_of,
    read_section,
    section_of,
)
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError, StateMigrationError
from holdfast.locations.handles import OperatorStateHandle, OperatorStateMode, StatePartitions
from holdfast.locations.metadata import StoredSubtask
from holdfast.locations.storages import CheckpointedStateScope, CheckpointStreamFactory

_KINDS = {
    OperatorStateMode.SPLIT_DISTRIBUTE: "list state",
    OperatorStateMode.UNION: "union list state",
    OperatorStateMode.BROADCAST: "broadcast state",
}


@dataclass(frozen=True, slots=True)
class _CapturedState:
    """One state at the time of the snapshot; the chunks of its columns are shared, or made when they are written."""

    mode: OperatorStateMode
    schema: pa.Schema
    columns: Callable[[], Sequence[Sequence[pa.Array]]]

    def rows(self) -> pa.Table:
        chunks = zip(self.columns(), self.schema, strict=True)
        arrays = [pa.chunked_array(column, field.type) for column, field in chunks]
        return pa.table(arrays, self.schema)


class _CapturedStates(dict[str, list[_CapturedState]]):
    """All states of a backend, by name: a part for each form in which a state is stored."""

    def release(self) -> None:
        self.clear()


@dataclass(frozen=True, slots=True)
class OperatorStateSnapshotStrategy:
    """Writes all states into one stream, one section each.

    If a state is stored in several forms, because not all subtasks have declared its new type, the first form is in the
    first stream, the second one in a second stream, and so on.
    """

    capture: Callable[[], dict[str, list[_CapturedState]]]
    compression: Compression | None = None

    def sync_prepare_resources(self, checkpoint_id: int) -> _CapturedStates:  # noqa: ARG002  # the port's
        return _CapturedStates(self.capture())

    def async_snapshot(
        self, resources: _CapturedStates, streams: SnapshotStreams
    ) -> SnapshotResult:
        handles: list[OperatorStateHandle] = []
        written = None
        for number in range(max(map(len, resources.values()), default=0)):
            written = WrittenStates(
                {
                    name: WrittenState(forms[number].mode, forms[number].rows())
                    for name, forms in resources.items()
                    if number < len(forms)
                }
            )
            with streams.open(CheckpointedStateScope.EXCLUSIVE) as stream:
                states = written.write(stream, self.compression)
                handle = streams.finish(stream)
            if handle is not None:
                handles.append(OperatorStateHandle(states, handle))
        # Compressed state could only be compared with a file by compressing it again.
        is_comparable = len(handles) == 1 and self.compression is None
        state = StoredSubtask(managed_operator=tuple(handles))
        return SnapshotResult(state, written if is_comparable else None)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of a state that are stored in one form."""

    parts: tuple[pa.Table, ...]  # one of each handle
    shared_bytes: int  # size of the memory that they are part of

    @property
    def schema(self) -> pa.Schema:
        return self.parts[0].schema

    def columns(self) -> list[pa.ChunkedArray]:
        rows = pa.concat_tables(self.parts)
        return [compact_chunks(column, shared_bytes=self.shared_bytes) for column in rows.columns]

    def chunks(self) -> list[list[pa.Array]]:
        return [column.chunks for column in self.columns()]

    def and_then(self, other: "_Rows") -> "_Rows":
        return _Rows(self.parts + other.parts, self.shared_bytes + other.shared_bytes)


@dataclass(frozen=True, slots=True)
class _Stored:
    """A restored state, until the function declares it."""

    mode: OperatorStateMode
    runs: list[_Rows]  # in the order of their elements; only lists have several
    own_runs: list[_Rows]  # without copies of the parts that other subtasks store

    def forms(self, name: str) -> list[_Rows]:
        """Return the rows to store if the state is not declared, with rows of the same form together."""
        forms: list[_Rows] = []
        for run in self.own_runs:
            known = (
                i for i, form in enumerate(forms) if has_same_form(form.schema, run.schema, name)
            )
            index = next(known, None)
            if index is None:
                forms.append(run)
            else:
                forms[index] = forms[index].and_then(run)
        return forms


class OperatorStateBackend:
    """Keeps a subtask's operator states, restores and snapshots them.

    Restored states exist under their names from the start. A state that the function does not declare is stored again with
    the next snapshot; of a union list state, which every subtask has got, each subtask stores its own part. Subtasks may
    have stored a list in different forms, because not all of them have declared its new type: then each part is migrated
    from its own type when the function declares the state, and stays unchanged until then.

    Source:
        Flink, DefaultOperatorStateBackend. Here one name is one state: a list and a broadcast state of the same name are
        refused; there they overwrite each other.
    """

    def __init__(self) -> None:
        self._stored: dict[str, _Stored] = {}
        self._lists: dict[str, tuple[OperatorStateMode, ListState]] = {}
        self._maps: dict[str, BroadcastState] = {}
        self._snapshots: weakref.WeakSet[AsyncSnapshot] = weakref.WeakSet()
        self._is_closed = False

    @classmethod
    def restore(cls, handles: Iterable[OperatorStateHandle]) -> "OperatorStateBackend":
        """Restore a backend from handles; without handles it is empty.

        The same name in several handles is one state: elements of lists are appended in order,
        entries of maps replace those of earlier handles.

        Raises:
            CheckpointNotFoundError: A state file is gone.
            CheckpointCorruptedError: Stored bytes are damaged.
            StateMigrationError: Two handles have a state as different kinds, or a map with different types.
        """
        backend = cls()
        for handle in handles:
            location = location_of(handle.stream)
            with handle.stream.open_input_stream() as stream:
                # In the order of the stream, which is then read front to back.
                in_order = sorted(handle.states.items(), key=lambda item: item[1].offset)
                for name, partitions in in_order:
                    try:
                        section = section_of(
                            handle.stream, stream, partitions.offset, partitions.length
                        )
                    except EOFError as error:
                        message = f"state {name!r} can't be read ({error})"
                        raise CheckpointCorruptedError(message, location) from error
                    backend._restore(name, partitions, section, location)
        return backend

    @classmethod
    def from_written(cls, states: WrittenStates) -> "OperatorStateBackend":
        """Return the backend that `restore` would make from the file of these states."""
        backend = cls()
        for name, state in states.items():
            rows = _Rows((state.rows,), state.memory_bytes)
            backend._stored[name] = _Stored(state.mode, [rows], [rows])
        return backend

    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState:
        """Return the list state of that name; the same object each time. A new state is empty.

        When the job is restored with another parallelism its elements are spread evenly over
        the subtasks (`SPLIT_DISTRIBUTE`).

        Raises:
            StateMigrationError: The state was stored, or declared before, with a type that can't become
                this one.
            InvalidRequestError: A state of another kind has the name.
        """
        return self._list(descriptor, OperatorStateMode.SPLIT_DISTRIBUTE)

    def get_union_list_state(self, descriptor: ListStateDescriptor) -> ListState:
        """Return the union list state of that name: whenever the job is restored, each subtask gets all elements.

        Everything else is as for `get_list_state`. A subtask that has not declared the state by the time of its first
        snapshot after a restore stores only its own part. If it declares the state later, it gets that part, until the
        job is restored again.
        """
        return self._list(descriptor, OperatorStateMode.UNION)

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> BroadcastState:
        """Return the broadcast state of that name; the same object each time. A new state is empty.

        Raises:
            StateMigrationError: The state was stored, or declared before, with types that can't become
                these.
            InvalidRequestError: A state of another kind has the name.
        """
        name = descriptor.name
        _check_lasting(descriptor)
        serializers = (descriptor.key_serializer, descriptor.value_serializer)
        self._check_kind(name, OperatorStateMode.BROADCAST)
        state = self._maps.get(name)
        if state is not None:
            _check_same(name, (state.key_serializer, state.value_serializer), serializers)
            return state
        keys, values = self._columns(name, MAP_COLUMNS, serializers)
        if name in self._stored:
            _check_keys(name, self._stored[name].runs[0], keys, descriptor.key_serializer)
        state = self._maps[name] = BroadcastState(name, *serializers, (keys, values))
        self._stored.pop(name, None)
        return state

    def registered_state_names(self) -> frozenset[str]:
        """Return the names of the list and union list states, with restored ones."""
        return frozenset(self._lists) | self._stored_names(is_map=False)

    def registered_broadcast_state_names(self) -> frozenset[str]:
        """Return the names of the broadcast states, with restored ones."""
        return frozenset(self._maps) | self._stored_names(is_map=True)

    def snapshot(
        self,
        factory: CheckpointStreamFactory,
        *,
        compression: Compression | None = None,
        checkpoint_id: int = 0,
    ) -> AsyncSnapshot:
        """Take the synchronous part of a snapshot: capture the current states.

        Its time grows with the chunks of lists, the elements that were added singly since the last snapshot, and the
        entries of broadcast states that have changed, not with their bytes.

        Returns the asynchronous part, which is independent of later changes of the states, and writes them to the
        checkpoint's location. Raises `InvalidRequestError` if the backend is closed.
        """
        if self._is_closed:
            raise InvalidRequestError("the backend is closed")
        strategy = OperatorStateSnapshotStrategy(self._capture, compression)
        resources = strategy.sync_prepare_resources(checkpoint_id)
        snapshot = AsyncSnapshot.of(strategy, resources, factory)
        self._snapshots.add(snapshot)
        return snapshot

    def close(self) -> None:
        """Cancel snapshots that are in progress, and refuse further ones."""
        self._is_closed = True
        for snapshot in list(self._snapshots):
            snapshot.cancel()

    def dispose(self) -> None:
        """Close the backend, and forget all states."""
        self.close()
        self._stored.clear()
        self._lists.clear()
        self._maps.clear()

    def _stored_names(self, *, is_map: bool) -> set[str]:
        return {
            name
            for name, state in self._stored.items()
            if (state.mode is OperatorStateMode.BROADCAST) == is_map
        }

    def _list(self, descriptor: ListStateDescriptor, mode: OperatorStateMode) -> ListState:
        _check_lasting(descriptor)
        name, serializer = descriptor.name, descriptor.serializer
        self._check_kind(name, mode)
        if name in self._lists:
            _, state = self._lists[name]
            _check_same(name, (state.serializer,), (serializer,))
            return state
        (chunks,) = self._columns(name, LIST_COLUMNS, (serializer,))
        state = ListState(name, serializer, chunks)
        self._lists[name] = (mode, state)
        self._stored.pop(name, None)
        return state

    def _check_kind(self, name: str, mode: OperatorStateMode) -> None:
        known = None
        if name in self._stored:
            known = self._stored[name].mode
        elif name in self._lists:
            known, _ = self._lists[name]
        elif name in self._maps:
            known = OperatorStateMode.BROADCAST
        if known is not None and known is not mode:
            message = f"state {name!r} is a {_KINDS[known]}, but is requested as a {_KINDS[mode]}"
            raise InvalidRequestError(message)

    def _columns(
        self, name: str, names: tuple[str, ...], serializers: tuple[Serializer, ...]
    ) -> list[list[pa.Array]]:
        """Return the stored columns of a state, migrated to the serializers' types; empty columns for a new state."""
        chunks: list[list[pa.Array]] = [[] for _ in names]
        runs = self._stored[name].runs if name in self._stored else ()
        for rows in runs:
            columns = zip(rows.schema, rows.columns(), serializers, strict=True)
            for i, (field, stored, serializer) in enumerate(columns):
                chunks[i] += migrated_column(name, field, stored, serializer).chunks
        return chunks

    def _capture(self) -> dict[str, list[_CapturedState]]:
        """Capture all states in the order of their creation, restored ones first."""
        captured = {
            name: [
                _CapturedState(state.mode, rows.schema, rows.chunks) for rows in state.forms(name)
            ]
            for name, state in self._stored.items()
        }
        for name, (mode, state) in self._lists.items():
            schema = _schema(LIST_COLUMNS, (state.serializer,))
            captured[name] = [_CapturedState(mode, schema, partial(tuple, (state.chunks(),)))]
        for name, entries in self._maps.items():
            schema = _schema(MAP_COLUMNS, (entries.key_serializer, entries.value_serializer))
            captured[name] = [
                _CapturedState(OperatorStateMode.BROADCAST, schema, entries.capture())
            ]
        return captured

    def _restore(
        self, name: str, partitions: StatePartitions, section: pa.Buffer, location: str
    ) -> None:
        rows = read_section(
            section, first=partitions.first, count=partitions.count, name=name, location=location
        )
        is_map = tuple(rows.column_names) == MAP_COLUMNS
        if is_map != (partitions.mode is OperatorStateMode.BROADCAST):
            message = f"state {name!r} is not a {_KINDS[partitions.mode]}: it has columns {rows.column_names}"
            raise CheckpointCorruptedError(message, location)
        run = _Rows((rows,), section.size)
        known = self._stored.setdefault(name, _Stored(partitions.mode, [], []))
        if known.mode is not partitions.mode:
            raise StateMigrationError(
                f"state {name!r} is stored as a {_KINDS[known.mode]} by one subtask and as a "
                f"{_KINDS[partitions.mode]} by another one"
            )
        last = known.runs[-1].schema if known.runs else None
        has_last_form = last is not None and has_same_form(last, rows.schema, name)
        if known.runs and is_map and not has_last_form:
            raise StateMigrationError(
                f"state {name!r} is stored as {_types(name, known.runs[0].schema)} by one subtask "
                f"and as {_types(name, rows.schema)} by another one"
            )
        if has_last_form:
            known.runs[-1] = known.runs[-1].and_then(run)
        else:
            known.runs.append(run)
        if not partitions.is_copy:
            known.own_runs.append(run)


def _check_keys(name: str, stored: _Rows, keys: list[pa.Array], serializer: Serializer) -> None:
    """Refuse keys that were different when they were stored, and are equal after the migration."""
    field = stored.schema.field(0)
    before = stored_serializer(field, name)
    if serializer.migration(before, field.type) is None:
        return
    migrated = iter(serializer.decode(pa.chunked_array(keys, serializer.storage_type)))
    try:
        # Handles share keys; each of them has a key once.
        different = all(len(set(islice(migrated, len(rows)))) == len(rows) for rows in stored.parts)
        reason = "keys that were different would be equal, and lose their values"
    except TypeError:
        different, reason = False, "keys of that type can't be looked up"
    if not different:
        raise StateMigrationError(
            f"state {name!r} is stored with keys of type {before.name} and declared with keys of type "
            f"{serializer.name}: {reason}; declare the stored type, and copy the entries to a state of "
            "another name"
        )


def _check_lasting(descriptor: ListStateDescriptor | MapStateDescriptor) -> None:
    if descriptor.ttl is not None:
        raise InvalidRequestError(
            f"state {descriptor.name!r} has a time to live, which only keyed state can have; use a descriptor "
            "without `ttl`"
        )


def _check_same(name: str, known: tuple[Serializer, ...], wanted: tuple[Serializer, ...]) -> None:
    for earlier, other in zip(known, wanted, strict=True):
        if earlier != other:
            raise StateMigrationError(
                f"state {name!r} was first requested as {earlier.name}, and now as {other.name}"
            )


def _schema(names: tuple[str, ...], serializers: tuple[Serializer, ...]) -> pa.Schema:
    return pa.schema(
        [serializer.field(name) for name, serializer in zip(names, serializers, strict=True)]
    )


def _types(name: str, schema: pa.Schema) -> str:
    return " to ".join(stored_serializer(field, name).name for field in schema)
