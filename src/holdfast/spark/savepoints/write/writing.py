"""Write a savepoint from DataFrames: for a new query to begin with, or with some states changed."""

import logging
from collections.abc import Mapping
from os import PathLike
from typing import Any

import msgspec
from pyspark.sql import DataFrame

from holdfast.backends.inspection import StateRows
from holdfast.common import SYSTEM_CLOCK
from holdfast.errors import InvalidRequestError
from holdfast.locations.coordination import (
    complete_checkpoint,
    copy_files,
    copy_stream,
    dispose_on_error,
)
from holdfast.locations.metadata import CheckpointMetadata
from holdfast.locations.storages import (
    CheckpointStorageLocation,
    CompletedCheckpoint,
    FileSystemCheckpointStorage,
    load_checkpoint,
    resolve_pointer,
)
from holdfast.spark import sessions
from holdfast.spark.query import writer
from holdfast.spark.savepoints.configuration import savepoint_directory, use_stores
from holdfast.spark.savepoints.write.new_operator import NewOperator, operators_of
from holdfast.spark.savepoints.write.state_tables import StateTables
from holdfast.spark_progress import SPARK_FILES, directories_of, spark_files_of, with_copied_files

_log = logging.getLogger(__name__)

_JOB = "written"
"""Job of a savepoint that no job has taken."""


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
            more about them. None removes the state.
        base: A savepoint or checkpoint to begin with; it is only read.
        operators: New operators in `states`, by uid. With `base` each that is not in it is named here; without,
            an operator that is left out has one subtask and no key.

    Returns:
        Pointer to the savepoint: the URI of its directory.

    Raises:
        InvalidRequestError: An argument can't be used, or rows don't fit their state.
        CheckpointNotFoundError: There is no such base, or a file of it is gone.
        CheckpointCorruptedError: A file of it is damaged.
        StorageUnavailableError: Something could not be read or written; no savepoint was made.
        OutcomeUnknownError: The store did not say whether it was made.
    """
    clock = SYSTEM_CLOCK
    started_s = clock.monotonic_s()
    _check_names(states)
    if not states and base is None:
        raise InvalidRequestError("a savepoint without state or base is nothing to begin with")
    configuration = _configuration(states.values())
    directory = savepoint_directory(target, configuration)
    use_stores(configuration, directory, None if base is None else str(base))
    former = None if base is None else load_checkpoint(resolve_pointer(base))
    before = operators_of(former, states, operators or {})
    tables = StateTables.of(states)
    job_id = former.metadata.job_id if former else _JOB
    checkpoint_id = former.checkpoint_id if former else 0
    storage = FileSystemCheckpointStorage(directory, single_writer=True)
    location = storage.create_checkpoint_storage(job_id).initialize_location_for_savepoint(
        checkpoint_id, directory
    )
    with dispose_on_error(location):
        metadata = CheckpointMetadata(
            job_id=job_id,
            checkpoint_id=checkpoint_id,
            created_ms=clock.now_ms(),
            duration_ms=0,
            writer=writer(),
            operators={uid: tables.without(uid, operator) for uid, operator in before.items()},
            coordinator_states=former.metadata.coordinator_states if former else {},
        )
        if former is not None:
            metadata = _copied(metadata, former, configuration, location)
        written = {
            uid: tables.written(uid, operator, before=before[uid], location=location)
            for uid, operator in metadata.operators.items()
        }
        metadata = msgspec.structs.replace(
            metadata, operators=written, duration_ms=1000 * (clock.monotonic_s() - started_s)
        )
        completed = complete_checkpoint(location, metadata)
    pointer = completed.location.external_pointer
    _log.info("wrote savepoint %s with states %s", pointer, sorted(states))
    return pointer


def _check_names(states: Mapping[Any, Any]) -> None:
    for key in states:
        is_pair = isinstance(key, tuple) and [type(part) for part in key] == [str, str]
        if not is_pair:
            message = (
                f"states= names {key!r}; it must be a pair of the operator's uid and the state's "
                "name, such as ('orders', 'seen')"
            )
            raise InvalidRequestError(message)


def _configuration(values: Any) -> dict[str, str]:
    """Spark's configuration: of the session of the first DataFrame, or of this process if there is none."""
    rows = [value.rows if isinstance(value, StateRows) else value for value in values]
    frames = [frame for frame in rows if isinstance(frame, DataFrame)]
    return dict(frames[0].sparkSession.conf.getAll) if frames else sessions.configuration()


def _copied(
    metadata: CheckpointMetadata,
    former: CompletedCheckpoint,
    configuration: dict[str, str],
    location: CheckpointStorageLocation,
) -> CheckpointMetadata:
    """The metadata with copies of all files that are left of the base, also of Spark's if it has them."""
    use_stores(configuration, *directories_of(former))
    content = None
    if SPARK_FILES in former.metadata.coordinator_states:
        content = spark_files_of(former.metadata, former.location.external_pointer)
    metadata, copies = copy_files(
        metadata,
        lambda handle: copy_stream(handle.open_input_stream, location),
        also=[file.handle for file in content.files] if content else (),
    )
    if content is None:
        return metadata
    # Origins are for a savepoint that has this one as its base; but no query has the state that is written.
    copied = msgspec.structs.replace(with_copied_files(content, copies), state_origins={})
    states = metadata.coordinator_states | {SPARK_FILES: copied.encode(location.external_pointer)}
    return msgspec.structs.replace(metadata, coordinator_states=states)
