"""Write a savepoint from DataFrames: for a new query to begin with, or with some states changed."""

import difflib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame

from holdfast.backends.assignment import OperatorSettings
from holdfast.backends.inspection import (
    StateRows,
    StoredState,
    managed_state,
    state_names,
    write_states,
)
from holdfast.backends.keys import KEY_HASH
from holdfast.common import checkpoint_directory
from holdfast.errors import InvalidRequestError
from holdfast.locations.coordination import (
    complete_checkpoint,
    disposed_on_failure,
    stored,
    with_copies,
)
from holdfast.locations.handles import OperatorStateHandle
from holdfast.locations.metadata import CheckpointMetadata, OperatorState, SubtaskState
from holdfast.locations.storages import (
    CheckpointStorageLocation,
    CompletedCheckpoint,
    FileSystemCheckpointStorage,
    load_checkpoint,
    resolve_pointer,
)
from holdfast.spark import sessions
from holdfast.spark.query import writer
from holdfast.spark.savepoints.origin import use_stores
from holdfast.spark.settings import Settings
from holdfast.spark_progress import SPARK_FILES, directories_of, spark_files_of, with_copied_files

_log = logging.getLogger(__name__)

_JOB = "written"
"""Job of a savepoint that no job has taken."""


@dataclass(frozen=True, slots=True)
class NewOperator:
    """An operator that a written savepoint has and its base, if any, has not.

    Attributes:
        parallelism: Number of subtasks that its state is for; a query may begin with another one.
        max_parallelism: Number of its key groups; by default as for an operator with `parallelism`.
        key: The columns by which the query's operator deals its rows, if it does.
    """

    parallelism: int = 1
    max_parallelism: int | None = None
    key: str | Sequence[str] = ()

    def without_state(self) -> OperatorState:
        """It, before anything is written.

        Raises:
            InvalidRequestError: A number is outside its bounds.
        """
        settings = OperatorSettings(self.parallelism, self.max_parallelism)
        key = (self.key,) if isinstance(self.key, str) else tuple(self.key)
        return OperatorState(
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

    Without `base` it holds these states alone: a query that has no checkpoint yet begins with them if
    `spark.holdfast.savepoint.path` names it. With `base` it is that savepoint with some states
    replaced, added or removed: all else in it is copied, Spark's own side and what sinks keep too, so
    that `restore_savepoint` makes a query of it. Rows come to this process first.

    Args:
        target: URI of the directory to make it in; by default `spark.holdfast.savepoint.dir`.
        states: By the operator's uid and the state's name: the rows, a DataFrame of Spark or pandas
            or a `pyarrow.Table`, with the columns that `read_state` gives; or `StateRows`, which says
            more of them. None removes the state.
        base: A savepoint or checkpoint to begin with; it is only read.
        operators: Those of `states` that are not in `base`, by uid; by default with one subtask and
            no key.

    Returns:
        Pointer to the savepoint: the URI of its directory.

    Raises:
        InvalidRequestError: An argument can't be used, or rows don't fit their state.
        CheckpointNotFoundError: There is no such base, or a file of it is gone.
        CheckpointCorruptedError: A file of it is damaged.
        StorageUnavailableError: Something could not be read or written; no savepoint was made.
        OutcomeUnknownError: The store did not say whether it was made.
    """
    started = time.monotonic()
    _check_names(states)
    if not states and base is None:
        raise InvalidRequestError("a savepoint without state or base is nothing to begin with")
    configuration = _configuration(states.values())
    directory = target or Settings.parse(configuration).savepoint_dir
    if directory is None:
        message = "no savepoint directory: name one, or set spark.holdfast.savepoint.dir"
        raise InvalidRequestError(message)
    directory = checkpoint_directory(directory)
    use_stores(configuration, directory, None if base is None else str(base))
    former = None if base is None else load_checkpoint(resolve_pointer(base))
    changed = _operators(former, states, operators or {})
    tables = {key: _with_table(one) for key, one in states.items()}
    job_id = former.metadata.job_id if former else _JOB
    checkpoint_id = former.checkpoint_id if former else 0
    storage = FileSystemCheckpointStorage(directory, single_writer=True)
    location = storage.create_checkpoint_storage(job_id).initialize_location_for_savepoint(
        checkpoint_id, directory
    )
    with disposed_on_failure(location):
        metadata = CheckpointMetadata(
            job_id=job_id,
            checkpoint_id=checkpoint_id,
            created_ms=time.time_ns() // 1_000_000,
            duration_ms=0,
            writer=writer(),
            operators={uid: _without(one, uid, tables) for uid, one in changed.items()},
            coordinator_states=former.metadata.coordinator_states if former else {},
        )
        if former is not None:
            metadata = _copied(metadata, former, configuration, location)
        written = {
            uid: _written(uid, one, changed[uid], tables, location)
            for uid, one in metadata.operators.items()
        }
        metadata = msgspec.structs.replace(
            metadata, operators=written, duration_ms=1000 * (time.monotonic() - started)
        )
        completed = complete_checkpoint(location, metadata)
    pointer = completed.location.external_pointer
    _log.info("wrote savepoint %s with states %s", pointer, sorted(states))
    return pointer


def _check_names(states: Mapping[Any, Any]) -> None:
    for key in states:
        is_pair = isinstance(key, tuple) and [type(one) for one in key] == [str, str]
        if not is_pair:
            message = (
                f"states= names {key!r}; it must be a pair of the operator's uid and the state's "
                "name, such as ('orders', 'seen')"
            )
            raise InvalidRequestError(message)


def _configuration(values: Any) -> dict[str, str]:
    """Spark's configuration; that of a DataFrame's session where this process has no other."""
    rows = [one.rows if isinstance(one, StateRows) else one for one in values]
    frames = [given for given in rows if isinstance(given, DataFrame)]
    return dict(frames[0].sparkSession.conf.getAll) if frames else sessions.configuration()


def _operators(
    former: CompletedCheckpoint | None,
    states: Mapping[tuple[str, str], Any],
    new: Mapping[str, NewOperator],
) -> dict[str, OperatorState]:
    """All operators of the savepoint, as they were before, or without state."""
    known = former.metadata.operators if former else {}
    both = sorted(known.keys() & new.keys())
    if both:
        message = (
            f"operators {both} are in the base already, which says how they are; leave them out"
        )
        raise InvalidRequestError(message)
    uids = {uid for uid, _ in states}
    for uid in sorted(new.keys() - uids):
        nearest = difflib.get_close_matches(uid, uids, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else "leave it out, or give it one"
        raise InvalidRequestError(f"operators= names {uid!r}, of which there is no state; {hint}")
    found = dict(known)
    found |= {uid: one.without_state() for uid, one in new.items()}
    for (uid, name), rows in states.items():
        if rows is None and (uid not in known or name not in state_names(known[uid])):
            message = f"state {name!r} of operator {uid!r} is not in the base, and can't be removed"
            raise InvalidRequestError(message)
        found.setdefault(uid, NewOperator().without_state())
    return found


def _with_table(state: Any) -> StateRows | None:
    """The state with its rows as a table."""
    if state is None:
        return None
    given = state if isinstance(state, StateRows) else StateRows(state)
    rows = given.rows
    if isinstance(rows, DataFrame):
        rows = rows.toArrow()
    elif isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    elif type(rows).__module__.startswith("pandas."):
        try:
            rows = pa.Table.from_pandas(rows, preserve_index=False)
        except pa.ArrowException:  # not its text: it may hold data
            message = (
                "rows of pandas have values that are of no one Arrow type; give a pyarrow.Table"
            )
            raise InvalidRequestError(message) from None
    if not isinstance(rows, pa.Table):
        message = f"rows of a state are of type {type(rows).__name__}; give a table or a DataFrame"
        raise InvalidRequestError(message)
    return replace(given, rows=rows)


def _names(uid: str, tables: Mapping[tuple[str, str], StateRows | None]) -> set[str]:
    return {name for operator, name in tables if operator == uid}


def _without(
    operator: OperatorState, uid: str, tables: Mapping[tuple[str, str], StateRows | None]
) -> OperatorState:
    """The operator without the states that are replaced or removed, and without files of those alone."""
    gone = _names(uid, tables)
    if not gone:
        return operator

    def left(one: SubtaskState) -> SubtaskState:
        handles = (
            OperatorStateHandle(
                {name: where for name, where in handle.states.items() if name not in gone},
                handle.stream,
            )
            for handle in one.managed_operator
        )
        kept = tuple(handle for handle in handles if handle.states)
        return msgspec.structs.replace(one, managed_operator=kept)

    subtasks = {index: left(one) for index, one in operator.subtasks.items()}
    return msgspec.structs.replace(operator, subtasks=subtasks)


def _written(
    uid: str,
    operator: OperatorState,
    before: OperatorState,
    tables: Mapping[tuple[str, str], StateRows | None],
    location: CheckpointStorageLocation,
) -> OperatorState:
    """The operator with the states that are given."""
    given = {name: one for name in _names(uid, tables) if (one := tables[uid, name]) is not None}
    if not given:
        return operator
    there = set(state_names(before))
    replaced: dict[str, StoredState] = {
        name: managed_state(uid, name, before, wide_integers=False) for name in given.keys() & there
    }
    handles = write_states(
        given,
        location,
        parallelism=operator.parallelism,
        replaced=replaced,
        keeps_places=bool(operator.key),
    )
    subtasks = dict(operator.subtasks)
    for index, handle in handles.items():
        known = subtasks.get(index, SubtaskState())
        managed = (*known.managed_operator, handle)
        subtasks[index] = msgspec.structs.replace(known, managed_operator=managed)
    return msgspec.structs.replace(operator, subtasks=subtasks)


def _copied(
    metadata: CheckpointMetadata,
    former: CompletedCheckpoint,
    configuration: dict[str, str],
    location: CheckpointStorageLocation,
) -> CheckpointMetadata:
    """The same with copies of all files that are left of the base, Spark's too if it has them."""
    use_stores(configuration, *directories_of(former))
    content = None
    if SPARK_FILES in former.metadata.coordinator_states:
        content = spark_files_of(former.metadata, former.location.external_pointer)
    metadata, copies = with_copies(
        metadata,
        lambda one: stored(one.open_input_stream, location),
        also=[one.handle for one in content.files] if content else (),
    )
    if content is None:
        return metadata
    # Of a savepoint that is the base of another one: this one's state was not copied from a query.
    copied = msgspec.structs.replace(with_copied_files(content, copies), state_origins={})
    states = metadata.coordinator_states | {SPARK_FILES: copied.encode(location.external_pointer)}
    return msgspec.structs.replace(metadata, coordinator_states=states)
