"""Restores and rollbacks that are repeated: while the first still runs, or with other arguments."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from unittest import mock

import msgspec
import pytest
from contracts.errors import of_kind
from jobs.savepoint_crashes import can_be_started, latest_state, without_notes
from jobs.stopped_query import (
    QUERY,
    add_batches,
    all_files,
    put,
    remove,
    replace,
    states_after,
    text_of,
    write_job,
    write_query,
)

from holdfast import preview_rollback, progress_of, restore_savepoint, roll_back, take_savepoint
from holdfast.errors import CheckpointConflictError, InvalidRequestError
from holdfast.locations import latest_checkpoint
from holdfast.locations.adapters import file_system_for
from holdfast.locations.storages import CompletedCheckpoint, FileSystemCheckpointStorageAccess
from holdfast.spark.checkpoint_location import UNFINISHED_FILE
from holdfast.spark.checkpoint_location import replace as replace_file
from holdfast.spark.savepoints import (
    RESTORED_FILE,
    RestoredQuery,
    change_notes,
    is_attempt,
    restored_query,
)
from holdfast.spark.savepoints import restore as restoring
from holdfast.spark.savepoints.change_notes import Change

pytestmark = [
    pytest.mark.usefixtures("as_without_spark"),
    pytest.mark.exhaustive,  # test_savepoint_files.py has the main cases
]

Restore = Callable[[], RestoredQuery]


def interrupt_at(module: object, step: str, action: Callable[[], object]) -> None:
    """Interrupt an action right before a step."""
    with mock.patch.object(module, step, side_effect=KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            action()


def run_after(
    module: object, step: str, action: Callable[[], object]
) -> AbstractContextManager[object]:
    """Run another action once, right after a step."""
    real = getattr(module, step)

    def slow(*arguments: object) -> object:
        result = real(*arguments)
        with mock.patch.object(module, step, real):
            action()
        return result

    return mock.patch.object(module, step, slow)


# Concurrent repetitions


@pytest.mark.parametrize("dies_at", ["clear", "write_spark_files"])
def test_restore_does_not_finish_a_restarted_one(
    restore: Restore, fork: str, savepoint: str, directory: str, dies_at: str
) -> None:
    second = partial(interrupt_at, restoring, dies_at, restore)
    with run_after(restoring, "write_spark_files", second):
        with pytest.raises(CheckpointConflictError, check=of_kind("contended")):
            restore()
    assert not can_be_started(fork)
    restored = restore()
    whole = restore_savepoint(savepoint, f"{directory}/b", checkpoint_dir=f"{directory}/state")
    assert all_files(fork).keys() == all_files(whole.checkpoint_location).keys()
    assert latest_state(f"{directory}/forked", restored.query_id) == states_after(3)


def test_last_of_two_concurrent_restores_wins(restore: Restore, fork: str) -> None:
    ended: list[RestoredQuery] = []
    with run_after(restoring, "check_files", lambda: ended.append(restore())):
        with pytest.raises(CheckpointConflictError, check=of_kind("contended")):
            restore()
    files = all_files(fork)
    assert json.loads(files["metadata"])["id"] == ended[0].query_id
    assert files.keys() - without_notes(files) == {RESTORED_FILE}


def test_overtaken_restore_deletes_nothing(restore: Restore, fork: str) -> None:
    whole: list[dict[str, str]] = []

    def finish() -> None:
        restore()
        whole.append(all_files(fork))

    with run_after(restored_query, "tree", finish):
        with pytest.raises(CheckpointConflictError, check=of_kind("contended")):
            restore()
    assert all_files(fork) == whole[0]


def test_restart_in_the_last_moment_wins(restore: Restore, fork: str) -> None:
    second = partial(interrupt_at, restoring, "clear", restore)
    with run_after(change_notes, "check_newest", second):
        with pytest.raises(CheckpointConflictError, check=of_kind("contended")):
            restore()
    assert not can_be_started(fork)
    assert restore().batch_id == 3


@pytest.mark.parametrize("change", ["gone", "cut", "added"])
def test_restore_verifies_files_before_it_ends(restore: Restore, fork: str, change: str) -> None:
    def change_file() -> None:
        path = "state/0/1/9.delta" if change == "added" else "state/0/1/3.delta"
        if change != "added":
            remove(f"{fork}/{path}")
        if change != "gone":
            put(f"{fork}/{path}", "x")

    with run_after(restoring, "write_spark_files", change_file):
        with pytest.raises(CheckpointConflictError, match=r"state/0/1/.\.delta"):
            restore()
    assert not can_be_started(fork)
    assert restore().batch_id == 3


def test_restore_without_metadata_is_only_completed(restore: Restore, fork: str) -> None:
    calls = [mock.DEFAULT, KeyboardInterrupt]  # the second one is the last step of the restore
    with mock.patch.object(change_notes, "replace", wraps=replace_file, side_effect=calls):
        with pytest.raises(KeyboardInterrupt):
            restore()
    assert not can_be_started(fork)
    with mock.patch.object(restoring, "clear", side_effect=AssertionError):
        restored = restore()
    assert json.loads(text_of(f"{fork}/metadata"))["id"] == restored.query_id


def test_overtaken_rollback_deletes_nothing(stopped_query: str) -> None:
    def finish_and_resume() -> None:
        roll_back(stopped_query, checkpoint=2)
        add_batches(stopped_query, [2, 3])

    with run_after(Change, "begin", finish_and_resume):
        with pytest.raises(CheckpointConflictError, check=of_kind("contended")):
            roll_back(stopped_query, checkpoint=2)
    assert {"offsets/3", "commits/3", "state/0/1/4.delta"} < all_files(stopped_query).keys()
    assert can_be_started(stopped_query)


@pytest.mark.parametrize(
    ("module", "step"),
    [
        (restoring, "clear"),
        (FileSystemCheckpointStorageAccess, "initialize_base_locations_for_checkpoint"),
    ],
)
def test_job_of_a_concurrent_restore_is_not_shared(
    savepoint: str, directory: str, module: object, step: str
) -> None:
    forks = f"{directory}/forks"
    restore = partial(restore_savepoint, savepoint, checkpoint_dir=forks, job_id="one")
    with run_after(module, step, lambda: restore(f"{directory}/first")):
        with pytest.raises(InvalidRequestError, match="job one has checkpoints already"):
            restore(f"{directory}/second")
    assert not can_be_started(f"{directory}/second")
    last = latest_checkpoint(forks, "one")
    assert last is not None
    assert progress_of(last.metadata).checkpoint_location == f"{directory}/first"


# Other arguments, and later changes


def test_restored_query_with_other_paths_is_refused(directory: str, fork: str) -> None:
    write_query(f"{directory}/plain", batches=3)
    pointer = take_savepoint(f"{directory}/plain", f"{directory}/savepoints")
    restore = partial(restore_savepoint, pointer, fork)
    paths = {"file:///in": "file:///first"}
    interrupt_at(Change, "forget", partial(restore, paths=paths))
    for other in ({"file:///in": "file:///second"}, None):
        with pytest.raises(InvalidRequestError, match=r"with paths .*file:///first"):
            restore(paths=other)
    assert restore(paths=paths).batch_id == 2
    assert "file:///first/2" in text_of(f"{fork}/sources/0/2")


def test_unfinished_restore_can_be_repeated_with_other_paths(directory: str, fork: str) -> None:
    write_query(f"{directory}/plain", batches=3)
    pointer = take_savepoint(f"{directory}/plain", f"{directory}/savepoints")
    restore = partial(restore_savepoint, pointer, fork)
    interrupt_at(Change, "finish", partial(restore, paths={"file:///in": "file:///first"}))
    restore(paths={"file:///in": "file:///second"})
    assert "file:///second/2" in text_of(f"{fork}/sources/0/2")


def test_deleted_checkpoint_is_written_again(restore: Restore, directory: str) -> None:
    interrupt_at(Change, "forget", restore)
    file_system_for(directory).delete_tree(f"{directory}/forked")
    restored = restore()
    assert latest_state(f"{directory}/forked", restored.query_id) == states_after(3)


def test_rollback_with_operators_is_not_finished_without_them(
    stopped_query: str, directory: str
) -> None:
    interrupt_at(CompletedCheckpoint, "discard", partial(roll_back, stopped_query, checkpoint=2))
    before = all_files(directory)
    for function in (roll_back, preview_rollback):
        with pytest.raises(InvalidRequestError, match=f"job {QUERY} in {directory}/checkpoints"):
            function(stopped_query, batch_id=1, operators=False)
    assert all_files(directory) == before
    assert roll_back(stopped_query, checkpoint=2) == 1
    assert latest_state(f"{directory}/checkpoints", QUERY) == states_after(1)


# Notes of versions that noted neither attempts nor the job of a rollback


@pytest.mark.parametrize(
    ("place", "step"),
    [(restoring, "write_spark_files"), (Change, "forget")],
    ids=["just begun", "almost done"],
)
def test_restore_of_an_older_version_is_finished(
    restore: Restore, fork: str, place: object, step: str
) -> None:
    interrupt_at(place, step, restore)
    remove(*(f"{fork}/{path}" for path in all_files(fork) if is_attempt(path)))
    restored = restore()
    assert json.loads(text_of(f"{fork}/metadata"))["id"] == restored.query_id
    assert all_files(fork).keys() - without_notes(all_files(fork)) == {RESTORED_FILE}


def test_rollback_of_an_older_version_is_finished(stopped_query: str) -> None:
    interrupt_at(CompletedCheckpoint, "discard", partial(roll_back, stopped_query, checkpoint=2))
    note = f"{stopped_query}/{UNFINISHED_FILE}"
    content = msgspec.json.decode(text_of(note), type=dict[str, object])
    content |= {"job_id": None, "checkpoint_dir": None}
    replace(note, msgspec.json.encode(content).decode())
    assert roll_back(stopped_query, checkpoint=2) == 1


# Directories in each other


@pytest.mark.parametrize("inside", ["", "/state", "/own"])
def test_restore_of_operators_among_spark_files_is_refused(
    savepoint: str, fork: str, inside: str
) -> None:
    with pytest.raises(InvalidRequestError, match="overlap"):
        restore_savepoint(savepoint, fork, checkpoint_dir=f"{fork}{inside}")
    assert all_files(fork) == {}


def test_restore_into_the_directory_of_a_job_is_refused(savepoint: str, directory: str) -> None:
    jobs = f"{directory}/jobs"
    with pytest.raises(InvalidRequestError, match="overlap"):
        restore_savepoint(savepoint, f"{jobs}/one/shared", checkpoint_dir=jobs, job_id="one")
    assert all_files(jobs) == {}
    restore_savepoint(savepoint, f"{jobs}/spark", checkpoint_dir=jobs, job_id="one")


def test_query_with_checkpoints_among_spark_files_is_moved_by_a_copy(
    directory: str, fork: str
) -> None:
    location, copy = f"{directory}/original", f"{directory}/copy"
    write_query(location, batches=4)
    write_job(f"{location}/holdfast", location, batches=4)
    for path, text in all_files(location).items():
        if not path.startswith("holdfast/"):
            put(f"{copy}/{path}", text)
    pointer = take_savepoint(copy, f"{directory}/savepoints")
    forked = f"{directory}/forked"
    restored = restore_savepoint(pointer, fork, checkpoint_dir=forked, keep_query_id=True)
    assert (restored.query_id, restored.batch_id) == (QUERY, 3)
    assert latest_state(forked, QUERY) == states_after(3)


@pytest.mark.parametrize("inside", ["", "/savepoints", "/state/0"])
def test_savepoint_inside_its_query_is_refused(stopped_query: str, inside: str) -> None:
    before = all_files(stopped_query)
    with pytest.raises(InvalidRequestError, match="is in the query's checkpointLocation"):
        take_savepoint(stopped_query, f"{stopped_query}{inside}")
    assert all_files(stopped_query) == before
