"""Repetitions of finished restores, for callers that were killed before they had the settings."""

import dataclasses
import itertools
from collections.abc import Callable
from functools import partial
from unittest import mock

import pytest
from contracts.errors import of_kind
from jobs.savepoint_crashes import Crash, latest_state
from jobs.stopped_query import add_batches, all_files, put, replace, states_after, write_query

from holdfast import restore_savepoint, roll_back, take_savepoint
from holdfast.errors import CheckpointCorruptedError, InvalidRequestError
from holdfast.locations.adapters import file_system_for
from holdfast.spark.checkpoint_location import UNFINISHED_FILE
from holdfast.spark.savepoints import RESTORED_FILE, RestoredQuery
from holdfast.spark.savepoints import restore as restoring
from holdfast.spark.savepoints.change_notes import Change
from holdfast.testing import ANY_CALL, Faults

pytestmark = [
    pytest.mark.usefixtures("as_without_spark"),
    pytest.mark.exhaustive,  # test_savepoint_files.py has the main cases
]


Restore = Callable[[], RestoredQuery]


def test_repeated_restore_returns_the_same(restore: Restore, directory: str) -> None:
    first = restore()
    before = all_files(directory)
    assert not first.restored_before
    assert restore() == dataclasses.replace(first, restored_before=True)
    assert all_files(directory) == before


def test_restore_dead_near_its_end_can_be_repeated(
    savepoint: str, directory: str, faults: Faults
) -> None:
    def restore(number: object) -> RestoredQuery:
        state = f"{directory}/state-{number}"
        return restore_savepoint(savepoint, f"{directory}/fork-{number}", checkpoint_dir=state)

    faults.calls.clear()
    restore("whole")
    count = len(faults.calls) - faults.calls.count("abort")
    for back, plan in itertools.product(range(12), (faults.before, faults.after)):
        number = f"{back}-{plan.__name__}"
        faults.calls.clear()
        plan(ANY_CALL, Crash(), count - back)
        with pytest.raises(Crash):
            restore(number)
        faults.clear()
        left = all_files(f"{directory}/fork-{number}")
        again = restore(number)
        assert again.restored_before == (RESTORED_FILE in left)
        assert again.settings["spark.holdfast.checkpoint.dir"] == f"{directory}/state-{number}"
        assert UNFINISHED_FILE not in all_files(f"{directory}/fork-{number}")


def test_query_restored_from_another_savepoint_is_refused(
    restore: "partial[RestoredQuery]", stopped_query: str, directory: str
) -> None:
    restore()
    before = all_files(directory)
    other = take_savepoint(stopped_query, f"{directory}/others")
    with pytest.raises(InvalidRequestError, match="from another savepoint"):
        restore_savepoint(other, *restore.args[1:], **restore.keywords)
    assert before.items() <= all_files(directory).items()


@pytest.mark.parametrize(
    "other",
    [
        {"job_id": "other"},
        {"checkpoint_dir": "file:///elsewhere"},
        {"keep_query_id": True},
        {"paths": {"file:///in": "file:///moved"}},
    ],
    ids=lambda other: next(iter(other)),
)
def test_repetition_with_other_arguments_is_refused(
    restore: "partial[RestoredQuery]", directory: str, other: dict[str, object]
) -> None:
    restore()
    before = all_files(directory)
    with pytest.raises(InvalidRequestError, match=r"with other arguments \(query|with paths {}"):
        restore(**other)
    assert all_files(directory) == before


def test_resumed_query_is_not_restored_again(restore: Restore, fork: str) -> None:
    restore()
    add_batches(fork, [4])
    before = all_files(fork)
    with pytest.raises(InvalidRequestError, check=of_kind("already-ran")):
        restore()
    assert all_files(fork) == before


def test_changed_query_is_not_restored_again(restore: Restore, fork: str) -> None:
    restore()
    replace(f"{fork}/metadata", '{"id":"another"}')
    with pytest.raises(InvalidRequestError, match="changed since"):
        restore()


def test_rolled_back_query_is_not_restored_again(directory: str, fork: str) -> None:
    write_query(f"{directory}/plain", batches=3)
    pointer = take_savepoint(f"{directory}/plain", f"{directory}/savepoints")
    restore = partial(restore_savepoint, pointer, fork)
    restore()
    add_batches(fork, [3, 4])
    assert roll_back(fork, batch_id=2) == 2
    with pytest.raises(InvalidRequestError, match="is not empty, and nothing was restored"):
        restore()


def test_deleted_checkpoint_is_written_again(restore: Restore, directory: str) -> None:
    restore()
    file_system_for(directory).delete_tree(f"{directory}/forked")
    restored = restore()
    assert latest_state(f"{directory}/forked", restored.query_id) == states_after(3)


def test_unreadable_note_is_an_error(restore: Restore, fork: str) -> None:
    restore()
    replace(f"{fork}/{RESTORED_FILE}", "{")
    with pytest.raises(CheckpointCorruptedError, match="the note of the restore can't be read"):
        restore()


def test_restored_query_can_be_restored_elsewhere(
    restore: Restore, fork: str, directory: str
) -> None:
    restore()
    pointer = take_savepoint(fork, f"{directory}/savepoints")
    second = restore_savepoint(pointer, f"{directory}/2", checkpoint_dir=f"{directory}/state-2")
    assert not second.restored_before


def test_concurrent_rollback_keeps_its_note(restore: Restore, fork: str) -> None:
    restore()
    restored = all_files(fork)[RESTORED_FILE]
    with mock.patch.object(Change, "finish", side_effect=KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            roll_back(fork, checkpoint=4)
    put(f"{fork}/{RESTORED_FILE}", restored)
    with pytest.raises(InvalidRequestError, match="changed since"):
        restore()
    assert UNFINISHED_FILE in all_files(fork)


def test_repetition_writes_no_files(restore: Restore) -> None:
    restore()
    with mock.patch.object(restoring, "write_spark_files", side_effect=AssertionError):
        assert restore().restored_before
