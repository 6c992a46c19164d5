"""Import of a Flink savepoint to a Holdfast savepoint, so that a query starts with the state of a Flink job.

`import_plan` maps states and lists losses; `imported_tables` converts rows of keyed state. This module reads rows,
compares their keys with Flink's hash, routes them by Spark's hash, and writes them.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Self

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.backends.assignment import OperatorSettings
from holdfast.backends.inspection import (
    KeyedDescriptor,
    StateRows,
    write_partitioned_tables,
    write_states,
)
from holdfast.backends.keyed import TableSpec
from holdfast.backends.keys import KEY_HASH, KeyGroupRange, key_hash
from holdfast.common import SYSTEM_CLOCK, checkpoint_directory
from holdfast.errors import InvalidRequestError, UnreadableStateError
from holdfast.flink.import_plan import ImportPlan, MovedState, Place
from holdfast.flink.imported_tables import KeyedTarget, key_names, keyed_table, timers_rows
from holdfast.flink.savepoint import FlinkSavepoint
from holdfast.flink.spilled_rows import SpilledRows, SpillFile
from holdfast.locations.coordination import complete_checkpoint, dispose_on_error
from holdfast.locations.metadata import CheckpointMetadata, StoredOperator, StoredSubtask
from holdfast.locations.storages import CheckpointStorageLocation, FileSystemCheckpointStorage

_log = logging.getLogger(__name__)

_JOB = "flink"
_WAY_OUT = "allow_loss=True or --allow-loss continues without it"


def import_savepoint(
    savepoint: FlinkSavepoint,
    target: str,
    states: Mapping[Place, Place] | None = None,
    *,
    key: Mapping[str, str | Sequence[str]] | None = None,
    ttl_ms: Mapping[Place, int | None] | None = None,
    descriptors: Mapping[Place, KeyedDescriptor] | None = None,
    types: Mapping[Place, Mapping[str, str]] | None = None,
    timers: bool = True,
    allow_loss: bool = False,
) -> str:
    """Write a Holdfast savepoint from a Flink savepoint, for a new query to start from.

    Set `spark.holdfast.savepoint.path` to it in the query. Rows of keyed state are rerouted, because Spark and Flink hash
    keys differently; if Flink's hash of the keys is known, their key groups are checked first. Losses are logged as
    warnings before anything is written; `holdfast flink import --dry-run` only prints them. One key group of keyed state
    is in memory at a time, and temporary files (`TMPDIR`) become as large as the state. Operator state must fit into
    memory, as in Flink. The Flink savepoint is not changed.

    Args:
        savepoint: The result of `open_savepoint`.
        target: URI of the directory to make the savepoint in.
        states: New operator and state, by operator and state of Flink. By default all states of operators with a known
            uid under the same names, except those of windows and sources, which are internal to Flink.
        key: Columns that the query partitions its rows by, by new operator; by default the fields of a tuple or POJO,
            otherwise `key`.
        ttl_ms: Time to live of values, by operator and state of Flink, because Flink stores only the time of their last
            use. None for a state whose values no longer expire.
        descriptors: Descriptors of keyed states, by new operator and state, for types other than those of Flink's state,
            or a known function of a reducing or aggregating state. Without one, such a state uses a Python function.
        types: `types` of `read_state` for state of PyFlink, by operator and state of Flink. PyFlink stores a value as a
            list of one element, which is imported as a value if `descriptors` has a value state for it.
        timers: Whether to import timers of functions with the keyed states of their operator.
        allow_loss: Whether to continue although states can't be read, values are null, or rows are in flight.

    Returns:
        Pointer to the savepoint: the URI of its directory.

    Raises:
        InvalidRequestError: An argument is not valid, or a state can't be converted to its target.
        UnreadableStateError: States can't be read, or rows are in flight, and `allow_loss` is not set.
        CheckpointCorruptedError: The savepoint is corrupted, or keys are in wrong key groups.
        CheckpointNotFoundError: A file of it is missing.
        StorageUnavailableError: A read or write failed; no savepoint was written.
        StorageFullError: There is no space for temporary files.
    """
    planned = FlinkStateImport.of(
        savepoint,
        states,
        key=key,
        ttl_ms=ttl_ms,
        descriptors=descriptors,
        types=types,
        timers=timers,
        allow_loss=allow_loss,
    )
    states_read = planned.read()
    for lost in states_read.lost:
        _log.warning("import of Flink's state loses %s", lost)
    return states_read.write(target)


@dataclass(slots=True)
class _Operator:
    parallelism: int = 1
    max_parallelism: int = 1
    key: tuple[str, ...] = ()
    lists: dict[str, StateRows] = field(default_factory=dict)
    keyed: list["_KeyedRows"] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _KeyedRows:
    """A keyed state, and its rows by their new key groups."""

    spec: TableSpec
    descriptor: KeyedDescriptor | None
    rows: SpilledRows

    def add(self, rows: pa.Table, max_parallelism: int) -> None:
        """Route rows by Spark's hash. Raises `InvalidRequestError` for keys that can't be hashed."""
        for batch in rows.combine_chunks().to_batches():
            hashes = key_hash(batch.columns[: len(self.spec.key)]).to_numpy().astype(np.int64)
            self.rows.add(batch, hashes % max_parallelism)

    def of_groups(self, groups: KeyGroupRange) -> Iterator[StateRows]:
        """Read the rows of a range of key groups, in steps of whole groups."""
        for _, rows in self.rows.blocks(groups.start_key_group, groups.end_key_group + 1):
            yield StateRows(rows, self.descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkStateImport:
    """State of Flink to import, before it is read and written.

    Attributes:
        savepoint: The Flink savepoint.
        plan: Targets of its states.
        keys: Names of the key's columns by operator.
        ttl_ms: Time to live of values by operator and state of Flink.
        descriptors: Descriptors of keyed states by new operator and state.
        types: Types of PyFlink by operator and state of Flink.
        allow_loss: Whether to drop null values.
    """

    savepoint: FlinkSavepoint
    plan: ImportPlan
    keys: Mapping[str, tuple[str, ...]]
    ttl_ms: Mapping[Place, int | None]
    descriptors: Mapping[Place, KeyedDescriptor]
    types: Mapping[Place, Mapping[str, str]]
    allow_loss: bool

    @property
    def kept(self) -> list[str]:
        """Readable lines of the imported states."""
        return [each.description for each in self.plan.moved]

    @property
    def starting_offsets(self) -> dict[str, str]:
        """Spark's `startingOffsets` by operators of Kafka sources."""
        return dict(self.plan.starting_offsets)

    @classmethod
    def of(
        cls,
        savepoint: FlinkSavepoint,
        states: Mapping[Place, Place] | None = None,
        *,
        key: Mapping[str, str | Sequence[str]] | None = None,
        ttl_ms: Mapping[Place, int | None] | None = None,
        descriptors: Mapping[Place, KeyedDescriptor] | None = None,
        types: Mapping[Place, Mapping[str, str]] | None = None,
        timers: bool = True,
        allow_loss: bool = False,
    ) -> Self:
        """Plan an import. Arguments and errors are those of `import_savepoint`."""
        plan = ImportPlan(savepoint, states, timers=timers)
        if plan.refused and not allow_loss:
            raise UnreadableStateError(f"{'; '.join(plan.refused)}; {_WAY_OUT}")
        if not plan.moved:
            raise InvalidRequestError(f"no state would be imported: {'; '.join(plan.lost)}")
        key, ttl_ms, descriptors, types = key or {}, ttl_ms or {}, descriptors or {}, types or {}
        by_key = [each for each in plan.moved if each.is_keyed]
        with_ttl = [each for each in by_key if each.has_ttl]
        _check_known("ttl_ms", ttl_ms, {each.source for each in with_ttl})
        _check_known("descriptors", descriptors, {each.target for each in by_key})
        _check_known("types", types, {each.source for each in by_key})
        _check_known("key", key, {each.target[0] for each in by_key})
        unknown = [
            "/".join(each.source)
            for each in with_ttl
            if each.source not in ttl_ms and each.target not in descriptors
        ]
        if unknown:
            message = (
                f"values of {', '.join(unknown)} have a time to live, which Flink does not store: set "
                "ttl_ms={(operator, state): 3_600_000} or --ttl OPERATOR/STATE=3600000, or use None or never "
                "for values that do not expire"
            )
            raise InvalidRequestError(message)
        return cls(
            savepoint=savepoint,
            plan=plan,
            keys={
                uid: (names,) if isinstance(names, str) else tuple(names)
                for uid, names in key.items()
            },
            ttl_ms=ttl_ms,
            descriptors=descriptors,
            types=types,
            allow_loss=allow_loss,
        )

    def read(self, on_read: Callable[[str, str, int], None] | None = None) -> "StatesRead":
        """Read the imported states. Errors are those of `import_savepoint`.

        Args:
            on_read: Called with operator, state and number of rows after each state.
        """
        known = {row["operator"]: row for row in self.savepoint.operators().to_pylist()}
        operators: dict[str, _Operator] = {}
        for each in self.plan.moved:
            operator = operators.setdefault(each.target[0], _Operator())
            row = known[each.operator]
            operator.parallelism = max(operator.parallelism, row["parallelism"])
            operator.max_parallelism = max(operator.max_parallelism, row["max_parallelism"])
        lost = [*self.plan.lost, *self.plan.refused]
        file = SpillFile()
        for each in self.plan.moved:
            try:
                count = self._add(operators[each.target[0]], each, file)
            except UnreadableStateError as error:
                if not self.allow_loss:
                    raise UnreadableStateError(f"{error.args[0]}; {_WAY_OUT}") from error
                lost.append(str(error))
                continue
            if on_read is not None:
                on_read(*each.target, count)
        read = {
            uid: operator for uid, operator in operators.items() if operator.lists or operator.keyed
        }
        watermarks = "watermarks, which are not in Flink savepoints: event time starts from scratch"
        return StatesRead(read, [*lost, watermarks])

    def _add(self, operator: _Operator, each: MovedState, file: SpillFile) -> int:
        """Add a state to its new operator; returns its number of rows."""
        name = each.target[1]
        if not each.is_keyed:
            rows = self.savepoint.read_state(*each.source, kind=each.kind)
            operator.lists[name] = StateRows(rows, union=each.kind == "union")
            return len(rows)
        keyed: _KeyedRows | None = None
        for rows in self._tables(each):
            names = key_names(rows.schema.field("key").type, self.keys.get(each.target[0], ()))
            if operator.key not in {(), names}:
                message = f"operator {each.target[0]!r} has states with keys {list(operator.key)} and {list(names)}"
                raise InvalidRequestError(message)
            groups = operator.max_parallelism
            spec, state = self._convert(each, rows, names, groups)
            if keyed is None:
                spilled = SpilledRows(state.rows.schema, groups, file)
                keyed = _KeyedRows(spec, state.descriptor, spilled)
            keyed.add(state.rows, groups)
        assert keyed is not None
        keyed.rows.finish()
        operator.key = names
        operator.keyed.append(keyed)
        return keyed.rows.count

    def _tables(self, each: MovedState) -> Iterator[pa.Table]:
        """Read the rows of a state, one key group at a time; yields at least one table, for its types."""
        arguments: dict[str, Any] = {
            "kind": each.kind,
            "explode": each.kind == "keyed map",
            "types": self.types.get(each.source),
        }
        is_empty = True
        for batch in self.savepoint.iter_state(*each.source, check_keys=True, **arguments):
            yield pa.Table.from_batches([batch])
            is_empty = False
        if is_empty:
            yield self.savepoint.read_state(*each.source, **arguments)

    def _convert(
        self, each: MovedState, rows: pa.Table, names: tuple[str, ...], max_parallelism: int
    ) -> tuple[TableSpec, StateRows]:
        if each.domain:
            return timers_rows(rows, each.domain, names, max_parallelism)
        descriptor = self.descriptors.get(each.target)
        ttl_ms = self.ttl_ms.get(each.source)
        if descriptor is not None:
            ttl_ms = None if descriptor.ttl is None else descriptor.ttl.ttl_ms
        target = KeyedTarget(
            name=each.target[1],
            kind=each.kind,
            key=names,
            max_parallelism=max_parallelism,
            has_ttl=each.has_ttl,
            ttl_ms=ttl_ms,
            descriptor=descriptor,
            drops_nulls=self.allow_loss,
        )
        return keyed_table(rows, target)


@dataclass(frozen=True, slots=True)
class StatesRead:
    """State of Flink that has been read, before it is written, and readable lines of data that is not imported."""

    operators: Mapping[str, _Operator]
    lost: list[str]

    def write(self, target: str) -> str:
        """Write the savepoint to a directory; returns its pointer. Errors are those of `import_savepoint`."""
        clock = SYSTEM_CLOCK
        started_s = clock.monotonic_s()
        directory = checkpoint_directory(target)
        storage = FileSystemCheckpointStorage(directory, single_writer=True)
        access = storage.create_checkpoint_storage(_JOB)
        location = access.initialize_location_for_savepoint(0, directory)
        with dispose_on_error(location):
            stored = {
                uid: _write_operator(operator, location) for uid, operator in self.operators.items()
            }
            metadata = CheckpointMetadata(
                job_id=_JOB,
                checkpoint_id=0,
                created_ms=clock.now_ms(),
                duration_ms=1000 * (clock.monotonic_s() - started_s),
                writer=f"holdfast {version('holdfast')}",
                operators=stored,
                coordinator_states={},
            )
            completed = complete_checkpoint(location, metadata)
        return completed.location.external_pointer


def _check_known(subject: str, given: Collection[Any], known: Collection[Any]) -> None:
    """Check that arguments are for imported states. Raises `InvalidRequestError`."""
    unknown = sorted(set(given) - set(known))
    if unknown:
        message = f"{subject} names {unknown}, which are not imported or not of this type; available: {sorted(known)}"
        raise InvalidRequestError(message)


def _write_operator(operator: _Operator, location: CheckpointStorageLocation) -> StoredOperator:
    """Write the state of an operator; returns its entry for the metadata."""
    parallelism = operator.parallelism
    settings = OperatorSettings(parallelism, operator.max_parallelism)
    subtasks: dict[int, StoredSubtask] = {}
    if operator.keyed:
        segments = write_partitioned_tables(
            [(keyed.spec, keyed.of_groups) for keyed in operator.keyed],
            location,
            parallelism=parallelism,
            max_parallelism=operator.max_parallelism,
        )
        for index, tables in segments.items():
            subtasks[index] = StoredSubtask(managed_keyed=(tables,))
    if operator.lists:
        handles = write_states(operator.lists, location, parallelism=parallelism, replaced={})
        for index, handle in handles.items():
            known = subtasks.get(index, StoredSubtask())
            subtasks[index] = msgspec.structs.replace(known, managed_operator=(handle,))
    return StoredOperator(
        parallelism=parallelism,
        max_parallelism=settings.max_parallelism_or_default,
        subtasks=subtasks,
        key=operator.key,
        key_hash=KEY_HASH if operator.key else "",
    )
