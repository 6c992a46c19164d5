"""Savepoints, restores, rollbacks and imports that die at one of their steps, without Spark.

Each check returns the number of deaths.
"""

import itertools
from collections.abc import Callable, Iterable
from functools import partial
from unittest import mock

import msgspec
from jobs.stopped_query import QUERY, all_files, put, states_after, text_of, write_job, write_query

from holdfast import restore_savepoint, roll_back, take_savepoint
from holdfast.errors import CheckpointNotFoundError
from holdfast.flink import FlinkSavepoint, import_savepoint
from holdfast.locations import FileSystemCheckpointStorage, find_checkpoints
from holdfast.locations.coordination import load_latest_checkpoint
from holdfast.spark.checkpoint_location import APPLICATION_FILE, UNFINISHED_FILE
from holdfast.spark.savepoints import RESTORED_FILE, is_attempt
from holdfast.testing import ANY_CALL, Faults


class Crash(BaseException):
    """The process ends here: no other call follows."""


def crashes_at(faults: Faults, step: int, action: Callable[[], object]) -> bool:
    """Run an action that dies at a call to the store. Return False if it ended before that call."""
    faults.calls.clear()

    def die() -> None:
        if len(faults.calls) - faults.calls.count("abort") >= step:
            raise Crash

    faults.before(ANY_CALL, die, "every")
    try:
        action()
    except Crash:
        return True
    finally:
        faults.clear()
    return False


def without_notes(paths: Iterable[str]) -> set[str]:
    """Remove the notes of restores and rollbacks from the files of a checkpointLocation."""
    notes = {UNFINISHED_FILE, RESTORED_FILE}
    return {path for path in paths if path not in notes and not is_attempt(path)}


def can_be_started(location: str) -> bool:
    """Return whether Spark finds a query's id."""
    try:
        return "id" in msgspec.json.decode(text_of(f"{location}/metadata"))
    except CheckpointNotFoundError:
        return False


def latest_state(directory: str, job_id: str) -> list[bytes]:
    """Return the bytes of each state of the operator in the latest checkpoint of a job."""
    access = FileSystemCheckpointStorage(directory).create_checkpoint_storage(job_id)
    last = load_latest_checkpoint(access)
    assert last is not None
    states = []
    for handle in last.metadata.streams():
        with handle.open_input_stream() as stream:
            states.append(stream.read())
    return states


def check_savepoints(faults: Faults, stride: int) -> int:
    """Check that an unfinished savepoint is not taken for a savepoint."""
    location, _ = _query(faults, 0)

    for step in itertools.count(1, stride):
        target = f"{faults.directory}/savepoints-{step}"
        if not crashes_at(faults, step, partial(take_savepoint, location, target)):
            return step // stride
        assert not [path for path in all_files(target) if path.endswith("/_metadata")]
    raise AssertionError("it dies at every step")


def check_restores(faults: Faults, stride: int) -> int:
    """Check that an unfinished restore can't be started unless it is whole, and that a repetition finishes it.

    Another repetition changes nothing, and returns the same.
    """
    location, _ = _query(faults, 0)
    pointer = take_savepoint(location, f"{faults.directory}/savepoints")
    whole = all_files(location).keys() - {"commits/0", "commits/1", "offsets/0", "offsets/1"}
    whole |= {APPLICATION_FILE}

    for step in itertools.count(1, stride):
        fork = f"{faults.directory}/fork-{step}"
        checkpoints = f"{faults.directory}/forked-checkpoints-{step}"
        restore = partial(restore_savepoint, pointer, fork, checkpoint_dir=checkpoints)
        died = crashes_at(faults, step, restore)
        if died:
            if can_be_started(fork):
                assert without_notes(all_files(fork)) == whole
            restore()
        files = all_files(fork)
        assert set(files) == whole | {RESTORED_FILE}
        restored = restore()
        assert restored.restored_before
        assert all_files(fork) == files
        assert msgspec.json.decode(files["metadata"])["id"] == restored.query_id
        assert latest_state(checkpoints, restored.query_id) == states_after(3)
        if not died:
            return step // stride
    raise AssertionError("it dies at every step")


@mock.patch("holdfast.spark.sessions.is_application_alive", mock.Mock(return_value=False))
def check_rollbacks(faults: Faults, stride: int) -> int:
    """Check that an unfinished rollback can't be started unless untouched or whole, and that a repetition finishes it."""
    rolled_back = {
        "metadata",
        "holdfast.json",
        APPLICATION_FILE,
        *(f"{log}/{batch}" for log in ("offsets", "commits", "sources/0") for batch in range(2)),
        "state/0/_metadata/metadata",
        *(f"state/0/{part}/_metadata/schema" for part in range(2)),
        *(f"state/0/{part}/{version}.delta" for part in range(2) for version in (1, 2)),
    }

    for step in itertools.count(1, stride):
        location, checkpoints = _query(faults, step)
        put(f"{location}/state/0/1/4.snapshot", "of the abandoned time line")
        before = all_files(location)
        died = crashes_at(faults, step, partial(roll_back, location, checkpoint=2))
        if died:
            if can_be_started(location):
                left = without_notes(all_files(location))
                batch = 1 if left == rolled_back else 3
                assert left in (rolled_back, set(before))
                assert latest_state(checkpoints, QUERY) == states_after(batch)
            assert roll_back(location, checkpoint=2) == 1
        files = all_files(location)
        assert set(files) == rolled_back
        assert files["metadata"] == before["metadata"]
        assert latest_state(checkpoints, QUERY) == states_after(1)
        if not died:
            return step // stride
    raise AssertionError("it dies at every step")


def check_imports(faults: Faults, savepoint: FlinkSavepoint, stride: int) -> int:
    """Check that an unfinished import from Flink is not taken for a savepoint."""
    for step in itertools.count(1, stride):
        target = f"{faults.directory}/imported-{step}"
        run = partial(import_savepoint, savepoint, target, allow_loss=True)
        if not crashes_at(faults, step, run):
            [made] = find_checkpoints(target)
            assert not isinstance(made.outcome, Exception)
            return step // stride
        assert not [path for path in all_files(target) if path.endswith("/_metadata")]
    raise AssertionError("it dies at every step")


def _query(faults: Faults, number: int) -> tuple[str, str]:
    """Write a stopped query, and return its checkpointLocation and its operator's checkpoint directory."""
    location = f"{faults.directory}/query-{number}"
    checkpoints = f"{faults.directory}/checkpoints-{number}"
    write_query(location, batches=4)
    write_job(checkpoints, location, batches=4)
    return location, checkpoints
