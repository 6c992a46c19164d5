"""Savepoints of stopped queries, without Spark: crashes at every step, damage, refusals."""

import dataclasses
from typing import cast

import msgspec
import pytest
from jobs.savepoint_crashes import (
    can_be_started,
    check_restores,
    check_rollbacks,
    check_savepoints,
    latest_state,
    without_notes,
)
from jobs.stopped_query import (
    QUERY,
    add_batches,
    all_files,
    put,
    remove,
    replace,
    states_after,
    text_of,
    write_query,
)
from pyspark.sql.streaming.query import StreamingQuery

from holdfast import progress_of, restore_savepoint, roll_back, take_savepoint
from holdfast.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    InvalidRequestError,
    StorageUnavailableError,
)
from holdfast.locations import latest_checkpoint, load_checkpoint
from holdfast.locations.adapters import FileStateHandle, file_system_for
from holdfast.locations.storages import resolve_pointer
from holdfast.spark.checkpoint_location import APPLICATION_FILE
from holdfast.spark.savepoints.copier import Base
from holdfast.spark.savepoints.stored_query import QueryAddress
from holdfast.spark.savepoints.take import copy_query
from holdfast.spark_progress import spark_files_of
from holdfast.testing import Faults, ManualClock

pytestmark = pytest.mark.usefixtures("as_without_spark")

STRIDE = 17
"""Not every step; integration_tests run them all."""


def test_savepoint_has_only_needed_files(stopped_query: str, directory: str) -> None:
    put(f"{stopped_query}/state/0/0/2.snapshot", "whole")
    pointer = take_savepoint(stopped_query, f"{directory}/savepoints")
    restored = restore_savepoint(pointer, f"{directory}/fork", checkpoint_dir=f"{directory}/other")
    original, fork = all_files(stopped_query), all_files(restored.checkpoint_location)
    assert set(original) - set(fork) == {
        "commits/0",
        "commits/1",
        "offsets/0",
        "offsets/1",
        "state/0/0/1.delta",
    }
    assert without_notes(fork) - set(original) == {APPLICATION_FILE}
    changed = {path for path in without_notes(fork) & set(original) if fork[path] != original[path]}
    assert changed == {"metadata", "holdfast.json"}
    assert msgspec.json.decode(fork["metadata"])["id"] == restored.query_id != QUERY


def test_restore_writes_a_checkpoint_of_the_new_query(savepoint: str, directory: str) -> None:
    other = f"{directory}/other"
    restored = restore_savepoint(savepoint, f"{directory}/fork", checkpoint_dir=other)
    last = latest_checkpoint(other, restored.query_id)
    assert last is not None
    progress = progress_of(last.metadata)
    assert (last.checkpoint_id, progress.batch_id, restored.batch_id) == (4, 3, 3)
    assert (last.metadata.job_id, progress.query_id) == (restored.query_id, restored.query_id)
    assert progress.checkpoint_location == restored.checkpoint_location
    assert restored.settings["spark.holdfast.checkpoint.dir"] == other
    file_system_for(directory).delete_tree(savepoint)
    assert latest_state(other, restored.query_id) == states_after(3)


class Running:
    """A running query that never commits its batch."""

    isActive = True  # noqa: N815  # as Spark calls it
    runId = "run"  # noqa: N815


def test_savepoint_of_a_running_query_waits_for_its_batch(
    stopped_query: str, directory: str
) -> None:
    remove(f"{stopped_query}/commits/3")
    clock = ManualClock()
    address = QueryAddress(
        query=stopped_query, checkpoint_dir=None, job_id=None, operators=True, configuration=None
    )
    running = dataclasses.replace(
        address.stored_query(), streaming_query=cast("StreamingQuery", Running())
    )
    pointer = copy_query(running, f"{directory}/kept", Base(), operators=True, clock=clock)
    assert sum(clock.sleeps) == pytest.approx(30)
    savepoint = load_checkpoint(resolve_pointer(pointer)).metadata
    assert savepoint.created_ms == clock.now_ms()
    assert savepoint.duration_ms == pytest.approx(30_000)


def test_failed_savepoint_leaves_no_files(
    stopped_query: str, directory: str, faults: Faults
) -> None:
    faults.calls.clear()
    faults.before("commit", StorageUnavailableError("as planned"), 3)
    with pytest.raises(StorageUnavailableError, match="as planned"):
        take_savepoint(stopped_query, f"{faults.directory}/savepoints")
    assert all_files(f"{faults.directory}/savepoints") == {}


def test_files_of_the_base_are_not_copied_again(stopped_query: str, directory: str) -> None:
    savepoints = f"{directory}/savepoints"
    base = take_savepoint(stopped_query, savepoints)
    add_batches(stopped_query, [4])
    pointer = take_savepoint(stopped_query, savepoints, base=base, operators=False)
    files = spark_files_of(load_checkpoint(resolve_pointer(pointer)).metadata, pointer).files
    referred = {
        file.path
        for file in files
        if isinstance(file.handle, FileStateHandle) and file.handle.uri.startswith(base)
    }
    assert referred == {f"state/0/{p}/{version}.delta" for p in range(2) for version in range(1, 5)}
    # Both savepoints are moved together.
    moved = f"{directory}/moved"
    for path, text in all_files(savepoints).items():
        put(f"{moved}/{path}", text)
    file_system_for(savepoints).delete_tree(savepoints)
    restored = restore_savepoint(f"{moved}/{pointer.rpartition('/')[2]}", f"{directory}/fork")
    assert restored.batch_id == 4
    deltas = {path for path in all_files(restored.checkpoint_location) if path.endswith(".delta")}
    assert len(deltas) == 10


def test_savepoints_with_shared_operator_files_move_together(
    stopped_query: str, directory: str
) -> None:
    savepoints = f"{directory}/savepoints"
    base = take_savepoint(stopped_query, savepoints)
    pointer = take_savepoint(
        stopped_query, savepoints, base=take_savepoint(stopped_query, savepoints, base=base)
    )
    assert all_files(pointer).keys() == {"_metadata"}
    name = pointer.rpartition("/")[2]
    for path, text in all_files(savepoints).items():
        if path.startswith((name, base.rpartition("/")[2])):
            put(f"{directory}/moved/{path}", text)
    file_system_for(savepoints).delete_tree(savepoints)
    restored = restore_savepoint(
        f"{directory}/moved/{name}", f"{directory}/fork", checkpoint_dir=f"{directory}/other"
    )
    assert latest_state(f"{directory}/other", restored.query_id) == states_after(3)


def test_base_of_another_query_is_refused(savepoint: str, directory: str) -> None:
    restored = restore_savepoint(
        savepoint, f"{directory}/fork", checkpoint_dir=f"{directory}/other"
    )
    with pytest.raises(InvalidRequestError, match="another query"):
        take_savepoint(restored.checkpoint_location, f"{directory}/savepoints", base=savepoint)


def test_state_unsupported_by_repartitioning_is_refused_early(
    savepoint: str, directory: str
) -> None:
    write_query(f"{directory}/plain", batches=2)
    without = take_savepoint(f"{directory}/plain", f"{directory}/savepoints")
    for pointer, reason in (
        (savepoint, "operators"),
        (without, "only repartition state in RocksDB"),
    ):
        with pytest.raises(InvalidRequestError, match=reason):
            restore_savepoint(
                pointer,
                f"{directory}/fork",
                checkpoint_dir=f"{directory}/other",
                shuffle_partitions=4,
            )
    assert all_files(f"{directory}/fork") == {}


def test_directory_without_a_query_is_refused(stopped_query: str, directory: str) -> None:
    remove(f"{stopped_query}/metadata")
    with pytest.raises(InvalidRequestError, match="no query has its checkpointLocation here"):
        take_savepoint(stopped_query, f"{directory}/savepoints")


def test_damaged_savepoint_file_is_refused(savepoint: str, directory: str) -> None:
    files = spark_files_of(load_checkpoint(resolve_pointer(savepoint)).metadata, savepoint).files
    (victim,) = (file.handle for file in files if file.path == "state/0/1/3.delta")
    assert isinstance(victim, FileStateHandle)
    replace(victim.uri, "X" + text_of(victim.uri)[1:])
    fork = f"{directory}/fork"
    with pytest.raises(CheckpointCorruptedError, match="checksum"):
        restore_savepoint(savepoint, fork, checkpoint_dir=f"{directory}/other")
    assert not can_be_started(fork)


def test_restore_over_existing_files_is_refused(
    savepoint: str, stopped_query: str, directory: str
) -> None:
    before = all_files(stopped_query)
    with pytest.raises(InvalidRequestError, match="is not empty, and nothing was restored"):
        restore_savepoint(savepoint, stopped_query, checkpoint_dir=f"{directory}/other")
    with pytest.raises(InvalidRequestError, match="has checkpoints already"):
        restore_savepoint(
            savepoint,
            f"{directory}/fork",
            checkpoint_dir=f"{directory}/checkpoints",
            keep_query_id=True,
        )
    assert all_files(stopped_query) == before
    assert all_files(f"{directory}/fork") == {}


def test_operators_need_a_checkpoint_directory(savepoint: str, directory: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"checkpoint\.dir"):
        # Not with the settings of the session: one of another test may still be active in this thread.
        restore_savepoint(savepoint, f"{directory}/fork", configuration={})
    assert all_files(f"{directory}/fork") == {}


def test_checkpoints_and_savepoints_are_not_mixed_up(
    savepoint: str, stopped_query: str, directory: str
) -> None:
    checkpoint = f"{directory}/checkpoints/{QUERY}/chk-4"
    with pytest.raises(InvalidRequestError, match="not a savepoint"):
        restore_savepoint(checkpoint, f"{directory}/fork")
    with pytest.raises(InvalidRequestError, match="restore_savepoint"):
        roll_back(stopped_query, checkpoint=savepoint)
    assert roll_back(stopped_query, checkpoint=f"{directory}/checkpoints/{QUERY}/chk-3") == 2


@pytest.mark.parametrize(
    "missing", ["state/0/1/2.delta", "offsets/0", "commits/0", "sources/0/1", "sources/0/0"]
)
def test_rollback_to_a_batch_with_missing_files_is_refused(
    stopped_query: str, missing: str
) -> None:
    remove(f"{stopped_query}/{missing}")
    before = all_files(stopped_query)
    with pytest.raises(CheckpointNotFoundError):
        roll_back(stopped_query, checkpoint=2)
    assert all_files(stopped_query) == before


def test_source_log_compacted_after_the_batch_is_named(stopped_query: str) -> None:
    for entry in range(4):
        remove(f"{stopped_query}/sources/0/{entry}")
    put(f"{stopped_query}/sources/0/3.compact", "v1")
    with pytest.raises(CheckpointNotFoundError, match=r"sources/0/3\.compact"):
        roll_back(stopped_query, checkpoint=2)
    assert roll_back(stopped_query, checkpoint=4) == 3


def test_rollback_of_operators_needs_one_of_their_checkpoints(stopped_query: str) -> None:
    with pytest.raises(InvalidRequestError, match="one of its checkpoints"):
        roll_back(stopped_query, batch_id=1)
    with pytest.raises(InvalidRequestError, match="and not both"):
        roll_back(stopped_query)
    with pytest.raises(CheckpointNotFoundError, match="there are: 1, 2, 3, 4"):
        roll_back(stopped_query, checkpoint=9)


def test_repeatedly_missing_files_are_an_error_with_a_hint(
    stopped_query: str, directory: str
) -> None:
    remove(f"{stopped_query}/state/0/0/3.delta")
    with pytest.raises(CheckpointNotFoundError, match="num-retained"):
        take_savepoint(stopped_query, f"{directory}/savepoints")
    assert all_files(f"{directory}/savepoints") == {}


def test_source_with_unknown_files_is_refused(stopped_query: str, directory: str) -> None:
    put(f"{stopped_query}/sources/0/rocksdb/000001.sst", "x")
    with pytest.raises(InvalidRequestError, match=r"sources/0/rocksdb/000001\.sst"):
        take_savepoint(stopped_query, f"{directory}/savepoints")


def test_moved_input_gets_its_new_path(directory: str) -> None:
    location = write_query(f"{directory}/original", batches=2, source="file:///old%20place/in")
    pointer = take_savepoint(location, f"{directory}/savepoints")
    restored = restore_savepoint(
        pointer, f"{directory}/fork", paths={"file:///old place": "s3a://bucket/new 50% ü"}
    )
    entry = text_of(f"{restored.checkpoint_location}/sources/0/1").split("\n")[1]
    assert msgspec.json.decode(entry)["path"] == "s3a://bucket/new%2050%25%20ü/in/1"


def test_dead_savepoint_is_not_a_savepoint(faults: Faults) -> None:
    check_savepoints(faults, stride=STRIDE)


def test_dead_restore_is_not_startable_and_can_be_repeated(faults: Faults) -> None:
    check_restores(faults, stride=STRIDE)


@pytest.mark.exhaustive
def test_dead_rollback_is_not_startable_and_can_be_repeated(faults: Faults) -> None:
    check_rollbacks(faults, stride=STRIDE)
