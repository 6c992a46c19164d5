"""Write a savepoint from tables, without a run: for a new query, or with some states of its base changed."""

import difflib
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, Self

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame

from holdfast.backends.assignment import OperatorSettings
from holdfast.backends.inspection import (
    StateRows,
    is_keyed,
    states_of,
    without_tables,
    write_keyed_states,
    write_states,
)
from holdfast.backends.keys import KEY_HASH
from holdfast.common import SYSTEM_CLOCK, raise_shortage
from holdfast.errors import InvalidRequestError
from holdfast.locations.coordination import (
    complete_checkpoint,
    copy_files,
    copy_stream,
    dispose_on_error,
)
from holdfast.locations.handles import OperatorStateHandle, SegmentsStateHandle
from holdfast.locations.metadata import CheckpointMetadata, StoredOperator, StoredSubtask
from holdfast.locations.storages import (
    CheckpointStorageLocation,
    CompletedCheckpoint,
    FileSystemCheckpointStorage,
    load_checkpoint,
    resolve_pointer,
)
from holdfast.spark import sessions
from holdfast.spark.compat import settings_of
from holdfast.spark.operators import is_collated, read_table
from holdfast.spark.query import writer_version
from holdfast.spark.savepoints.stored_query import savepoint_directory, use_stores
from holdfast.spark_progress import SPARK_FILES, directories_of, find_spark_files, with_copied_files

_log = logging.getLogger(__name__)

_JOB = "written"
"""Job of a savepoint without a base."""


@dataclass(frozen=True, slots=True)
class NewOperator:
    """An operator of a written savepoint that its base, if any, does not have.

    Attributes:
        parallelism: Number of subtasks of its state; a query may start with another number.
        max_parallelism: Number of its key groups; by default as for an operator with `parallelism`.
        key: The key columns of the query's operator, if it has any.
    """

    parallelism: int = 1
    max_parallelism: int | None = None
    key: str | Sequence[str] = ()

    def without_state(self) -> StoredOperator:
        """Return the stored operator, without state. Raises `InvalidRequestError`."""
        settings = OperatorSettings(self.parallelism, self.max_parallelism)
        key = (self.key,) if isinstance(self.key, str) else tuple(self.key)
        return StoredOperator(
            parallelism=self.parallelism,
            max_parallelism=settings.max_parallelism_or_default,
            subtasks={},
            key=key,
            key_hash=KEY_HASH if key else "",
        )


def write_savepoint(
    target: str | PathLike[str] | None,
    states: Mapping[tuple[str, str], Any],
    *,
    base: str | PathLike[str] | None = None,
    operators: Mapping[str, NewOperator] | None = None,
) -> str:
    """Write a savepoint whose states are tables.

    Without `base` it holds only these states: a query without a checkpoint begins with them if
    `spark.holdfast.savepoint.path` names the savepoint. With `base` it is that savepoint with some states
    replaced, added or removed: everything else is copied, Spark's side and states of sinks too, so
    that `restore_savepoint` makes a query of it. This process collects the rows.

    Args:
        target: URI of the directory to make it in; by default `spark.holdfast.savepoint.dir`.
        states: By the operator's uid and the state's name: the rows, a DataFrame of Spark or pandas
            or a `pyarrow.Table`, with the columns of `read_state`; or `StateRows`, which describes
            them further. None removes the state.
        base: A savepoint or checkpoint to begin with; it is only read.
        operators: New operators in `states`, by uid. With `base`, name each operator that is not in it; without,
            an operator that is left out has one subtask and no key.

    Returns:
        Pointer to the savepoint: the URI of its directory.

    Raises:
        InvalidRequestError: An argument can't be used, or rows don't match their state.
        CheckpointNotFoundError: There is no such base, or a file of it is gone.
        CheckpointCorruptedError: A file of it is corrupt.
        StorageUnavailableError: Something could not be read or written; no savepoint was made.
        OutcomeUnknownError: The store did not report whether it was made.
    """
    clock = SYSTEM_CLOCK
    started_s = clock.monotonic_s()
    _check_keys(states)
    if not states and base is None:
        raise InvalidRequestError("a savepoint needs states or a base")
    configuration = _configuration(states.values())
    directory = savepoint_directory(target, configuration)
    use_stores(configuration, directory, None if base is None else str(base))
    base_checkpoint = None if base is None else load_checkpoint(resolve_pointer(base))
    base_operators = _operators(base_checkpoint, states, operators or {})
    tables = _StateTables.of(states)
    job_id = base_checkpoint.metadata.job_id if base_checkpoint else _JOB
    checkpoint_id = base_checkpoint.checkpoint_id if base_checkpoint else 0
    storage = FileSystemCheckpointStorage(directory, single_writer=True)
    access = storage.create_checkpoint_storage(job_id)
    location = access.initialize_location_for_savepoint(checkpoint_id, directory)
    with dispose_on_error(location):
        metadata = CheckpointMetadata(
            job_id=job_id,
            checkpoint_id=checkpoint_id,
            created_ms=clock.now_ms(),
            duration_ms=0,
            writer=writer_version(),
            operators={uid: tables.drop_from(uid, old) for uid, old in base_operators.items()},
            coordinator_states=base_checkpoint.metadata.coordinator_states
            if base_checkpoint
            else {},
        )
        if base_checkpoint is not None:
            metadata = _copy_base(metadata, base_checkpoint, configuration, location)
        new_operators = {
            uid: tables.write_to(location, uid, operator, base=base_operators[uid])
            for uid, operator in metadata.operators.items()
        }
        metadata = msgspec.structs.replace(
            metadata, operators=new_operators, duration_ms=1000 * (clock.monotonic_s() - started_s)
        )
        complete_checkpoint(location, metadata)
    _log.info("wrote savepoint %s with states %s", location.external_pointer, sorted(states))
    return location.external_pointer


def _check_keys(states: Mapping[Any, Any]) -> None:
    for key in states:
        is_pair = isinstance(key, tuple) and [type(part) for part in key] == [str, str]
        if not is_pair:
            message = (
                f"a key of states must be a pair of the operator's uid and the state's name, such as "
                f"('orders', 'seen'), got {key!r}"
            )
            raise InvalidRequestError(message)


def _configuration(values: Iterable[Any]) -> dict[str, str]:
    """Return Spark's configuration: that of the first DataFrame's session, or of this process."""
    rows = [value.rows if isinstance(value, StateRows) else value for value in values]
    frames = [frame for frame in rows if isinstance(frame, DataFrame)]
    return settings_of(frames[0].sparkSession) if frames else sessions.configuration()


def _copy_base(
    metadata: CheckpointMetadata,
    base: CompletedCheckpoint,
    configuration: dict[str, str],
    location: CheckpointStorageLocation,
) -> CheckpointMetadata:
    """Copy all files that the metadata leads to, and the base's Spark files if it has any."""
    use_stores(configuration, *directories_of(base))
    spark_files = find_spark_files(base)
    metadata, copies = copy_files(
        metadata,
        lambda handle: copy_stream(handle.open_input_stream, location),
        also=[file.handle for file in spark_files.files] if spark_files else (),
    )
    if spark_files is None:
        return metadata
    # Origins serve a savepoint that has this one as its base; but no query has the written state.
    copied = msgspec.structs.replace(with_copied_files(spark_files, copies), state_origins={})
    states = metadata.coordinator_states | {SPARK_FILES: copied.encode(location.external_pointer)}
    return msgspec.structs.replace(metadata, coordinator_states=states)


def _operators(
    base: CompletedCheckpoint | None,
    states: Mapping[tuple[str, str], Any],
    new: Mapping[str, NewOperator],
) -> dict[str, StoredOperator]:
    """Return all operators of the savepoint, as in its base, or without state; `new` has those that aren't in the base."""
    known = base.metadata.operators if base else {}
    _check_uids({uid for uid, _ in states}, known, new)
    operators = dict(known)
    operators |= {uid: operator.without_state() for uid, operator in new.items()}
    for (uid, name), rows in states.items():
        stored_states = states_of(uid, known[uid]) if uid in known else []
        if rows is None and name not in {state.name for state in stored_states}:
            message = f"state {name!r} of operator {uid!r} is not in the base, and can't be removed"
            raise InvalidRequestError(message)
        operators.setdefault(uid, NewOperator().without_state())
    return operators


def _check_uids(uids: set[str], known: Collection[str], new: Collection[str]) -> None:
    both = sorted(set(known) & set(new))
    if both:
        message = f"operators {both} are in the base already, with their settings; leave them out"
        raise InvalidRequestError(message)
    for uid in sorted(set(new) - uids):
        hint = _suggest(uid, uids) or "leave it out, or add a state"
        raise InvalidRequestError(f"operators= names {uid!r}, which has no state; {hint}")
    # With a base, a new operator must be named in operators=, so that a misspelled uid doesn't become an operator.
    for uid in sorted(uids - set(known) - set(new)) if known else ():
        hint = " ".join(filter(None, [_suggest(uid, known), "name a new operator in operators="]))
        message = f"operator {uid!r} is not in the base, which has {sorted(known)}; {hint}"
        raise InvalidRequestError(message)


def _suggest(uid: str, uids: Collection[str]) -> str:
    """Return a question with a similar uid, or an empty text."""
    nearest = difflib.get_close_matches(uid, uids, n=1)
    return f"did you mean {nearest[0]!r}?" if nearest else ""


@dataclass(frozen=True, slots=True)
class _StateTables:
    """States to write, replace or remove, by the operator's uid and the state's name; None for a state to remove."""

    tables: Mapping[tuple[str, str], StateRows | None]

    @classmethod
    def of(cls, states: Mapping[tuple[str, str], Any]) -> Self:
        """Convert the rows of all states to tables."""
        return cls({key: _to_table(state) for key, state in states.items()})

    def drop_from(self, uid: str, operator: StoredOperator) -> StoredOperator:
        """Return the operator without the states that are replaced or removed, and without their files."""
        keyed = self._keyed_names(uid, operator)
        names = self._names(uid) - keyed
        if not names | keyed:
            return operator

        def drop(subtask: StoredSubtask) -> StoredSubtask:
            handles = (
                OperatorStateHandle(
                    {name: offsets for name, offsets in handle.states.items() if name not in names},
                    handle.stream,
                )
                for handle in subtask.managed_operator
            )
            tables = (
                without_tables(handle, keyed) if isinstance(handle, SegmentsStateHandle) else handle
                for handle in subtask.managed_keyed
            )
            return msgspec.structs.replace(
                subtask,
                managed_operator=tuple(handle for handle in handles if handle.states),
                managed_keyed=tuple(handle for handle in tables if handle is not None),
            )

        subtasks = {index: drop(subtask) for index, subtask in operator.subtasks.items()}
        return msgspec.structs.replace(operator, subtasks=subtasks)

    def write_to(
        self,
        location: CheckpointStorageLocation,
        uid: str,
        operator: StoredOperator,
        *,
        base: StoredOperator,
    ) -> StoredOperator:
        """Write the states of an operator; return it with them.

        Args:
            location: The savepoint to write to.
            uid: The operator.
            operator: Its remainder after `drop_from`.
            base: The operator in the base, whose types apply to replaced states.
        """
        states = {
            name: rows for name in self._names(uid) if (rows := self.tables[uid, name]) is not None
        }
        keyed = {name: states.pop(name) for name in self._keyed_names(uid, base) & states.keys()}
        subtasks = dict(operator.subtasks)

        def add(field: str, handles: Mapping[int, Any]) -> None:
            for index, handle in handles.items():
                subtask = subtasks.get(index, StoredSubtask())
                change = {field: (*getattr(subtask, field), handle)}
                subtasks[index] = msgspec.structs.replace(subtask, **change)

        if states:
            replaced = {
                state.name: state.readable()
                for state in states_of(uid, base)
                if state.name in states and not state.is_keyed
            }
            handles = write_states(
                states,
                location,
                parallelism=operator.parallelism,
                replaced=replaced,
                needs_subtasks=bool(operator.key),
            )
            add("managed_operator", handles)
        if keyed:
            segments = write_keyed_states(
                keyed,
                location,
                parallelism=operator.parallelism,
                max_parallelism=operator.max_parallelism,
                key=operator.key,
                stored=states_of(uid, base),
            )
            add("managed_keyed", segments)
        return msgspec.structs.replace(operator, subtasks=subtasks)

    def _keyed_names(self, uid: str, operator: StoredOperator) -> set[str]:
        """Return the names of keyed states among those to write, replace or remove."""
        names = self._names(uid)
        stored_states = states_of(uid, operator) if names else []
        return {name for name in names if is_keyed(name, self.tables[uid, name], stored_states)}

    def _names(self, uid: str) -> set[str]:
        return {name for operator, name in self.tables if operator == uid}


def _to_table(state: Any) -> StateRows | None:
    """Convert the rows of a state to a table."""
    if state is None:
        return None
    state_rows = state if isinstance(state, StateRows) else StateRows(state)
    rows = state_rows.rows
    if isinstance(rows, DataFrame):
        collated = [field.name for field in rows.schema if is_collated(field.dataType)]
        if collated:
            message = (
                f"columns {collated} of the rows of a state have a collation, and state compares the bytes of strings; "
                "cast them to string"
            )
            raise InvalidRequestError(message)
        rows = read_table(rows)
    elif isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    elif type(rows).__module__.startswith("pandas."):
        try:
            rows = pa.Table.from_pandas(rows, preserve_index=False)
        except pa.ArrowException as error:  # not its text: it may hold data
            raise_shortage(error)
            message = "pandas rows of a state have values without a common Arrow type; pass a pyarrow.Table"
            raise InvalidRequestError(message) from None
    if not isinstance(rows, pa.Table):
        message = f"rows of a state are of type {type(rows).__name__}; pass a table or a DataFrame"
        raise InvalidRequestError(message)
    return replace(state_rows, rows=rows)
