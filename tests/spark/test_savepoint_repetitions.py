"""Restores and roll backs that are repeated: while the first still goes on, or with other arguments."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from unittest import mock

import msgspec
import pytest
from contracts.errors import of_kind
from jobs.savepoint_crashes import can_be_started, latest_state, without_notes
from jobs.stopped import (
    QUERY,
    add_batches,
    all_files,
    put,
    remove,
    replace,
    state_of,
    text_of,
    write_job,
    write_query,
)

from holdfast import preview_rollback, progress_of, restore_savepoint, roll_back, take_savepoint
from holdfast.errors import CheckpointConflictError, InvalidRequestError
from holdfast.locations import FileSystemCheckpointStorage
from holdfast.locations.adapters import file_system_for
from holdfast.locations.coordination import load_latest_checkpoint
from holdfast.locations.storages import CompletedCheckpoint, FileSystemCheckpointStorageAccess
from holdfast.spark.checkpoint_location import UNFINISHED_FILE
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
    pytest.mark.exhaustive,  # more cases of what test_savepoint_files.py does
]

Restore = Callable[[], RestoredQuery]


@pytest.fixture
def savepoint(stopped: str, directory: str) -> str:
    """A savepoint of a query with an operator."""
    return take_savepoint(stopped, f"{directory}/savepoints")


@pytest.fixture
def fork(directory: str) -> str:
    """Where it is restored."""
    return f"{directory}/fork"


@pytest.fixture
def restore(savepoint: str, fork: str, directory: str) -> Restore:
    """Restores it there."""
    return partial(restore_savepoint, savepoint, fork, checkpoint_dir=f"{directory}/forked")


def interrupted(module: object, step: str, action: Callable[[], object]) -> None:
    """Do something that is interrupted right before a step of its."""
    with mock.patch.object(module, step, side_effect=KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            action()


def _interrupt() -> None:
    raise KeyboardInterrupt


def meanwhile(
    module: object, step: str, action: Callable[[], object]
) -> AbstractContextManager[object]:
    """Lets something else happen once, right behind a step."""
    real = getattr(module, step)

    def slow(*arguments: object) -> object:
        result = real(*arguments)
        with mock.patch.object(module, step, real):
            action()
        return result

    return mock.patch.object(module, step, slow)


# The same at once


@pytest.mark.parametrize("dies_at", ["clear", "write_spark_files"])
def test_a_restore_does_not_end_what_another_one_has_begun_anew(
    restore: Restore, fork: str, savepoint: str, directory: str, dies_at: str
) -> None:
    second = partial(interrupted, restoring, dies_at, restore)
    with meanwhile(restoring, "write_spark_files", second):
        with pytest.raises(CheckpointConflictError, check=of_kind("contended")):
            restore()
    assert not can_be_started(fork)
    restored = restore()
    whole = restore_savepoint(savepoint, f"{directory}/b", checkpoint_dir=f"{directory}/state")
    assert all_files(fork).keys() == all_files(whole.checkpoint_location).keys()
    assert latest_state(f"{directory}/forked", restored.query_id) == [
        state_of(0, 3),
        state_of(1, 3),
    ]


def test_of_two_restores_at_once_the_last_one_ends(restore: Restore, fork: str) -> None:
    ended: list[RestoredQuery] = []
    with meanwhile(restoring, "check_files", lambda: ended.append(restore())):
        with pytest.raises(CheckpointConflictError, check=of_kind("contended")):
            restore()
    files = all_files(fork)
    assert json.loads(files["metadata"])["id"] == ended[0].query_id
    assert files.keys() - without_notes(files) == {RESTORED_FILE}


def test_a_restore_that_was_overtaken_clears_nothing_away(restore: Restore, fork: str) -> None:
    whole: list[dict[str, str]] = []

    def ends() -> None:
        restore()
        whole.append(all_files(fork))

    with meanwhile(restored_query, "tree", ends):
        with pytest.raises(CheckpointConflictError, check=of_kind("contended")):
            restore()
    assert all_files(fork) == whole[0]


def test_whoever_begins_anew_in_the_last_moment_is_not_overtaken(
    restore: Restore, fork: str
) -> None:
    second = partial(interrupted, restoring, "clear", restore)
    with meanwhile(change_notes, "check_newest", second):
        with pytest.raises(CheckpointConflictError, check=of_kind("contended")):
            restore()
    assert not can_be_started(fork)
    assert restore().batch_id == 3


@pytest.mark.parametrize("change", ["gone", "cut", "added"])
def test_a_restore_looks_at_what_lies_there_before_it_ends(
    restore: Restore, fork: str, change: str
) -> None:
    def changes() -> None:
        path = "state/0/1/9.delta" if change == "added" else "state/0/1/3.delta"
        if change != "added":
            remove(f"{fork}/{path}")
        if change != "gone":
            put(f"{fork}/{path}", "x")

    with meanwhile(restoring, "write_spark_files", changes):
        with pytest.raises(CheckpointConflictError, match=r"state/0/1/.\.delta"):
            restore()
    assert not can_be_started(fork)
    assert restore().batch_id == 3


def test_what_was_restored_but_for_metadata_is_not_made_anew(restore: Restore, fork: str) -> None:
    with meanwhile(change_notes, "end_attempt", _interrupt):
        with pytest.raises(KeyboardInterrupt):
            restore()
    assert not can_be_started(fork)
    with mock.patch.object(restoring, "clear", side_effect=AssertionError):
        restored = restore()
    assert json.loads(text_of(f"{fork}/metadata"))["id"] == restored.query_id


def test_a_roll_back_that_was_overtaken_deletes_nothing_of_what_came_since(stopped: str) -> None:
    def ends_and_goes_on() -> None:
        roll_back(stopped, checkpoint=2)
        add_batches(stopped, [2, 3])

    with meanwhile(Change, "begin", ends_and_goes_on):
        with pytest.raises(CheckpointConflictError, check=of_kind("contended")):
            roll_back(stopped, checkpoint=2)
    assert {"offsets/3", "commits/3", "state/0/1/4.delta"} < all_files(stopped).keys()
    assert can_be_started(stopped)


@pytest.mark.parametrize(
    ("module", "step"),
    [
        (restoring, "clear"),
        (FileSystemCheckpointStorageAccess, "initialize_base_locations_for_checkpoint"),
    ],
)
def test_a_job_that_another_restore_takes_meanwhile_is_not_shared(
    savepoint: str, directory: str, module: object, step: str
) -> None:
    forks = f"{directory}/forks"
    restore = partial(restore_savepoint, savepoint, checkpoint_dir=forks, job_id="one")
    with meanwhile(module, step, lambda: restore(f"{directory}/first")):
        with pytest.raises(InvalidRequestError, match="job one has checkpoints already"):
            restore(f"{directory}/second")
    assert not can_be_started(f"{directory}/second")
    last = load_latest_checkpoint(
        FileSystemCheckpointStorage(forks).create_checkpoint_storage("one")
    )
    assert last is not None
    assert progress_of(last.metadata).checkpoint_location == f"{directory}/first"


# Other arguments, and what has changed since


def test_a_restored_query_with_other_paths_is_not_taken_for_the_wanted_one(
    directory: str, fork: str
) -> None:
    write_query(f"{directory}/plain", batches=3)
    pointer = take_savepoint(f"{directory}/plain", f"{directory}/savepoints")
    restore = partial(restore_savepoint, pointer, fork)
    paths = {"file:///in": "file:///first"}
    interrupted(Change, "forget", partial(restore, paths=paths))
    for other in ({"file:///in": "file:///second"}, None):
        with pytest.raises(InvalidRequestError, match=r"with paths .*file:///first"):
            restore(paths=other)
    assert restore(paths=paths).batch_id == 2
    assert "file:///first/2" in text_of(f"{fork}/sources/0/2")


def test_an_unfinished_restore_may_be_repeated_with_other_paths(directory: str, fork: str) -> None:
    write_query(f"{directory}/plain", batches=3)
    pointer = take_savepoint(f"{directory}/plain", f"{directory}/savepoints")
    restore = partial(restore_savepoint, pointer, fork)
    interrupted(Change, "finish", partial(restore, paths={"file:///in": "file:///first"}))
    restore(paths={"file:///in": "file:///second"})
    assert "file:///second/2" in text_of(f"{fork}/sources/0/2")


def test_a_checkpoint_that_was_deleted_since_is_made_again(
    restore: Restore, directory: str
) -> None:
    interrupted(Change, "forget", restore)
    file_system_for(directory).delete_tree(f"{directory}/forked")
    restored = restore()
    assert latest_state(f"{directory}/forked", restored.query_id) == [
        state_of(0, 3),
        state_of(1, 3),
    ]


def test_a_roll_back_with_operators_is_not_finished_without_them(
    stopped: str, directory: str
) -> None:
    interrupted(CompletedCheckpoint, "discard", partial(roll_back, stopped, checkpoint=2))
    before = all_files(directory)
    for look in (roll_back, preview_rollback):
        with pytest.raises(InvalidRequestError, match=f"job {QUERY} in {directory}/checkpoints"):
            look(stopped, batch_id=1, operators=False)
    assert all_files(directory) == before
    assert roll_back(stopped, checkpoint=2) == 1
    assert latest_state(f"{directory}/checkpoints", QUERY) == [state_of(0, 1), state_of(1, 1)]


# Notes of versions that noted no attempts, nor the job of a roll back


@pytest.mark.parametrize(
    ("place", "step"),
    [(restoring, "write_spark_files"), (Change, "forget")],
    ids=["begun", "all but done"],
)
def test_a_restore_that_an_older_version_has_begun_is_finished(
    restore: Restore, fork: str, place: object, step: str
) -> None:
    interrupted(place, step, restore)
    remove(*(f"{fork}/{path}" for path in all_files(fork) if is_attempt(path)))
    restored = restore()
    assert json.loads(text_of(f"{fork}/metadata"))["id"] == restored.query_id
    assert all_files(fork).keys() - without_notes(all_files(fork)) == {RESTORED_FILE}


def test_a_roll_back_that_an_older_version_has_begun_is_finished(stopped: str) -> None:
    interrupted(CompletedCheckpoint, "discard", partial(roll_back, stopped, checkpoint=2))
    note = f"{stopped}/{UNFINISHED_FILE}"
    begun = msgspec.json.decode(text_of(note), type=dict[str, object])
    begun |= {"job_id": None, "checkpoint_dir": None}
    replace(note, msgspec.json.encode(begun).decode())
    assert roll_back(stopped, checkpoint=2) == 1


# Directories in each other


@pytest.mark.parametrize("inside", ["", "/state", "/own"])
def test_checkpoints_of_operators_are_not_restored_among_files_of_spark(
    savepoint: str, fork: str, inside: str
) -> None:
    with pytest.raises(InvalidRequestError, match="overlap"):
        restore_savepoint(savepoint, fork, checkpoint_dir=f"{fork}{inside}")
    assert all_files(fork) == {}


def test_files_of_spark_are_not_restored_into_a_jobs_directory(
    savepoint: str, directory: str
) -> None:
    jobs = f"{directory}/jobs"
    with pytest.raises(InvalidRequestError, match="overlap"):
        restore_savepoint(savepoint, f"{jobs}/one/shared", checkpoint_dir=jobs, job_id="one")
    assert all_files(jobs) == {}
    restore_savepoint(savepoint, f"{jobs}/spark", checkpoint_dir=jobs, job_id="one")


def test_a_query_with_its_checkpoints_among_files_of_spark_is_moved_by_a_savepoint_of_a_copy(
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
    assert latest_state(forked, QUERY) == [state_of(0, 3), state_of(1, 3)]


@pytest.mark.parametrize("inside", ["", "/savepoints", "/state/0"])
def test_a_savepoint_is_not_taken_into_the_query_it_is_of(stopped: str, inside: str) -> None:
    before = all_files(stopped)
    with pytest.raises(InvalidRequestError, match="is in the query's checkpointLocation"):
        take_savepoint(stopped, f"{stopped}{inside}")
    assert all_files(stopped) == before
