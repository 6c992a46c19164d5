"""A savepoint of Holdfast, made of one of Flink: for a query to begin with the state of a Flink job.

`import_plan` says which states become which, and what is lost; `imported_tables` turns rows of keyed state into those of
ours. Here they are read, their keys compared with Flink's hash, dealt anew by Spark's hash, and written.
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
    write_dealt_tables,
    write_states,
)
from holdfast.backends.keyed import TableSpec
from holdfast.backends.keys import KEY_HASH, KeyGroupRange, key_hash
from holdfast.common import SYSTEM_CLOCK, checkpoint_directory
from holdfast.errors import InvalidRequestError, UnreadableStateError
from holdfast.flink.moving.dealt_rows import DealtRows, SpillFile
from holdfast.flink.moving.import_plan import ImportPlan, MovedState, Place
from holdfast.flink.moving.imported_tables import KeyedTarget, key_names, keyed_table, timers_rows
from holdfast.flink.savepoint import FlinkSavepoint
from holdfast.locations.coordination import complete_checkpoint, disposed_on_failure
from holdfast.locations.metadata import CheckpointMetadata, StoredOperator, StoredSubtask
from holdfast.locations.storages import CheckpointStorageLocation, FileSystemCheckpointStorage

_log = logging.getLogger(__name__)

_JOB = "flink"
_WAY_OUT = "allow_loss=True or --allow-loss goes on without"


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
    """Make a savepoint of Holdfast of a savepoint of Flink, for a new query to begin with.

    `spark.holdfast.savepoint.path` names it to the query. Rows of keyed state are dealt anew, because Spark hashes keys
    otherwise than Flink; where Flink's hash of the keys is known, their key groups are compared with it first. What is
    lost is logged as warnings before anything is written; `holdfast flink import --dry-run` only says it. Of keyed
    state a key group is in memory at a time, and what was dealt is in temporary files (`TMPDIR`), as large as the state;
    operator state has to fit into memory, as it has to in Flink. What it reads is left as it is.

    Args:
        savepoint: What `open` has opened.
        target: URI of the directory to make the savepoint in.
        states: Operator and state here, by operator and state of Flink; by default all states of operators whose uid
            is known, under the same names, but those of windows and sources, which are Flink's own.
        key: By the operator here, the columns by which the query deals its rows; by default the fields of a
            tuple or POJO, else `key`.
        ttl_ms: How long values live, by operator and state of Flink: Flink stores only when they were last used. None
            for a state whose values live for ever from now on.
        descriptors: How the job names keyed states, by operator and state here, where other types than those of
            Flink's state are wanted, or a known function of a reducing or aggregating state. Without, such a state
            takes a function of Python.
        types: What `read_state` takes as `types` for state of PyFlink, by operator and state of Flink. A list of one
            element, as which PyFlink has a value, becomes the value if `descriptors` names a value state.
        timers: Whether timers of functions come along with the keyed states of their operator.
        allow_loss: Whether to go on although states can't be read, values are null, or rows are in flight.

    Returns:
        Pointer to the savepoint: the URI of its directory.

    Raises:
        InvalidRequestError: An argument can't be used, or a state can't become what it is to be.
        UnreadableStateError: States can't be read, or rows are in flight, and `allow_loss` is not given.
        CheckpointCorruptedError: The savepoint is damaged, or keys stand in key groups of others.
        CheckpointNotFoundError: A file of it is missing.
        StorageUnavailableError: Something could not be read or written; no savepoint was made.
        StorageFullError: There is no room for temporary files.
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
        _log.warning("import of Flink's state: lost is %s", lost)
    return states_read.write(target)


@dataclass(slots=True)
class _Operator:
    """An operator of the savepoint that is made, and what its subtasks have."""

    parallelism: int = 1
    max_parallelism: int = 1
    key: tuple[str, ...] = ()
    lists: dict[str, StateRows] = field(default_factory=dict)
    keyed: list["_KeyedRows"] = field(default_factory=list)

    @property
    def has_states(self) -> bool:
        """Whether it has any state."""
        return bool(self.lists or self.keyed)


@dataclass(frozen=True, slots=True)
class _KeyedRows:
    """A keyed state, and its rows by the key groups that they go to.

    Attributes:
        spec: What the state holds.
        descriptor: What describes it.
        rows: The state's rows.
    """

    spec: TableSpec
    descriptor: KeyedDescriptor | None
    rows: DealtRows

    @classmethod
    def of(
        cls, spec: TableSpec, state: StateRows, max_parallelism: int, file: SpillFile
    ) -> "_KeyedRows":
        """A state of which no rows were dealt yet; those that are here only say their types."""
        return cls(spec, state.descriptor, DealtRows(state.rows.schema, max_parallelism, file))

    def add(self, rows: pa.Table, max_parallelism: int) -> None:
        """Deal rows by Spark's hash. Raises `InvalidRequestError` for keys that can't be hashed."""
        for batch in rows.combine_chunks().to_batches():
            hashes = key_hash(batch.columns[: len(self.spec.key)]).to_numpy().astype(np.int64)
            self.rows.add(batch, hashes % max_parallelism)

    def of_groups(self, groups: KeyGroupRange) -> Iterator[StateRows]:
        """The rows of some key groups, in steps of whole groups."""
        for _, rows in self.rows.blocks(groups.start_key_group, groups.end_key_group + 1):
            yield StateRows(rows, self.descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkStateImport:
    """State of Flink that is to become that of a query; nothing is written yet.

    Attributes:
        savepoint: Where it is.
        plan: What becomes of its states.
        keys: By operator, names of the key's columns.
        ttl_ms: By operator and state of Flink, how long values live.
        descriptors: By operator and state here, how the job names keyed states.
        types: By operator and state of Flink, types of PyFlink.
        allow_loss: Whether values that are null are left out.
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
        """What is imported, for people: a line for each state."""
        return [each.description for each in self.plan.moved]

    @property
    def starting_offsets(self) -> dict[str, str]:
        """By the operators of sources that read Kafka, Spark's `startingOffsets`."""
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
        """Look at the savepoint. Arguments and errors are those of `import_savepoint`."""
        plan = ImportPlan.of(savepoint, states, timers=timers)
        if plan.refused and not allow_loss:
            raise UnreadableStateError(f"{'; '.join(plan.refused)}; {_WAY_OUT}")
        if not plan.moved:
            raise InvalidRequestError(f"no state would be imported: {'; '.join(plan.lost)}")
        by_key = [each for each in plan.moved if each.is_keyed]
        with_ttl = {each.source for each in by_key if each.has_ttl}
        _check_known("ttl_ms", ttl_ms or {}, with_ttl)
        _check_known("descriptors", descriptors or {}, {each.target for each in by_key})
        _check_known("types", types or {}, {each.source for each in by_key})
        _check_known("key", key or {}, {each.target[0] for each in by_key})
        unsaid = [
            "/".join(each.source)
            for each in by_key
            if each.has_ttl
            and each.source not in (ttl_ms or {})
            and each.target not in (descriptors or {})
        ]
        if unsaid:
            message = (
                f"values of {', '.join(unsaid)} have a time to live, of which Flink stores no length: say it, "
                "ttl_ms={(operator, state): 3_600_000} or --ttl OPERATOR/STATE=3600000, or that they live for "
                "ever, with None or never"
            )
            raise InvalidRequestError(message)
        return cls(
            savepoint=savepoint,
            plan=plan,
            keys={
                uid: (names,) if isinstance(names, str) else tuple(names)
                for uid, names in (key or {}).items()
            },
            ttl_ms=ttl_ms or {},
            descriptors=descriptors or {},
            types=types or {},
            allow_loss=allow_loss,
        )

    def read(self, told: Callable[[str, str, int], None] | None = None) -> "StatesRead":
        """Read all that is imported. Errors are those of `import_savepoint`.

        Args:
            told: Is called with operator, state and number of rows when these have been read.
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
            if told is not None:
                told(*each.target, count)
        read = {uid: operator for uid, operator in operators.items() if operator.has_states}
        watermarks = "watermarks, which are in no savepoint of Flink: event time begins anew"
        return StatesRead(read, [*lost, watermarks])

    def _add(self, operator: _Operator, each: MovedState, file: SpillFile) -> int:
        """Give a state to the operator that it is imported to; returns how many rows it has."""
        name = each.target[1]
        if not each.is_keyed:
            rows = self.savepoint.read_state(*each.source, kind=each.kind)
            operator.lists[name] = StateRows(rows, union=each.kind == "union")
            return len(rows)
        types = self.types.get(each.source)
        batches = self.savepoint.iter_state(
            *each.source,
            kind=each.kind,
            explode=each.kind == "keyed map",
            check_keys=True,
            types=types,
        )
        keyed: _KeyedRows | None = None
        for rows in self._tables(batches, each):
            names = key_names(rows.schema.field("key").type, self.keys.get(each.target[0], ()))
            if operator.key not in {(), names}:
                message = f"operator {each.target[0]!r} has states by {list(operator.key)} and by {list(names)}"
                raise InvalidRequestError(message)
            groups = operator.max_parallelism
            spec, state = self._keyed(each, rows, names, groups)
            if keyed is None:
                keyed = _KeyedRows.of(spec, state, groups, file)
            keyed.add(state.rows, groups)
        assert keyed is not None
        keyed.rows.finish()
        operator.key = names
        operator.keyed.append(keyed)
        return keyed.rows.count

    def _tables(self, batches: Iterator[pa.RecordBatch], each: MovedState) -> Iterator[pa.Table]:
        """The rows of a state, a key group at a time; at least one table, for its types."""
        first = next(batches, None)
        if first is None:
            yield self.savepoint.read_state(
                *each.source,
                kind=each.kind,
                explode=each.kind == "keyed map",
                types=self.types.get(each.source),
            )
            return
        yield pa.Table.from_batches([first])
        for batch in batches:
            yield pa.Table.from_batches([batch])

    def _keyed(
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
    """State of Flink that has been read and is not written yet.

    Attributes:
        operators: What each operator here gets, by its uid.
        lost: What is not imported, for people.
    """

    operators: Mapping[str, _Operator]
    lost: list[str]

    def write(self, target: str) -> str:
        """Write the savepoint into a directory; gives the pointer to it. Errors are those of `import_savepoint`."""
        clock = SYSTEM_CLOCK
        started_s = clock.monotonic_s()
        directory = checkpoint_directory(target)
        storage = FileSystemCheckpointStorage(directory, single_writer=True)
        access = storage.create_checkpoint_storage(_JOB)
        location = access.initialize_location_for_savepoint(0, directory)
        with disposed_on_failure(location):
            stored = {uid: _stored(operator, location) for uid, operator in self.operators.items()}
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


def _check_known(what: str, given: Collection[Any], known: Collection[Any]) -> None:
    """Refuse what names no state that is imported. Raises `InvalidRequestError`."""
    unknown = sorted(set(given) - set(known))
    if unknown:
        message = f"{what} names {unknown}, of which nothing is imported that it is for; there are {sorted(known)}"
        raise InvalidRequestError(message)


def _stored(operator: _Operator, location: CheckpointStorageLocation) -> StoredOperator:
    """The operator with its state, which is written."""
    parallelism = operator.parallelism
    settings = OperatorSettings(parallelism, operator.max_parallelism)
    subtasks: dict[int, StoredSubtask] = {}
    if operator.keyed:
        segments = write_dealt_tables(
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
