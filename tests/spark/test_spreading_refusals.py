"""Repartitioning of a savepoint's state: refusals, and repetitions that finish it."""

import json
from functools import partial
from unittest import mock

import pytest
from contracts.errors import of_kind
from jobs.stopped_query import all_files, put, replace, write_query

from holdfast import restore_savepoint, take_savepoint
from holdfast.errors import CheckpointConflictError, InvalidRequestError
from holdfast.spark import sessions
from holdfast.spark.checkpoint_location import UNFINISHED_FILE
from holdfast.spark.savepoints import restore as restoring

pytestmark = pytest.mark.usefixtures("as_without_spark")

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"


@pytest.fixture
def in_rocksdb(directory: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a savepoint of a query that is pinned to RocksDB, after two batches."""
    location = write_query(f"{directory}/original", batches=2)
    for batch in range(2):
        _pin(location, batch, 2)
    monkeypatch.setattr(sessions, "state_repartitioner", mock.Mock())
    return take_savepoint(location, f"{directory}/savepoints")


def _pin(location: str, batch: int, partitions: int) -> None:
    pinned = {
        "spark.sql.shuffle.partitions": str(partitions),
        _PROVIDER: "RocksDBStateStoreProvider",
    }
    text = f'v1\n{json.dumps({"conf": pinned})}\n{{"logOffset":{batch}}}'
    replace(f"{location}/offsets/{batch}", text)


def test_spreading_is_refused_before_any_write(
    in_rocksdb: str, fork: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidRequestError, match="2 partitions already"):
        restore_savepoint(in_rocksdb, fork, shuffle_partitions=2)
    no_session = InvalidRequestError("no session")
    monkeypatch.setattr(sessions, "state_repartitioner", mock.Mock(side_effect=no_session))
    with pytest.raises(InvalidRequestError, match="no session"):
        restore_savepoint(in_rocksdb, fork, shuffle_partitions=4)
    assert all_files(fork) == {}


@pytest.mark.parametrize("dies", ["before", "half way", "after"])
def test_dead_spreading_is_finished_by_a_repetition(in_rocksdb: str, fork: str, dies: str) -> None:
    calls: list[int] = []

    def spread(location: str, partitions: int) -> None:
        calls.append(partitions)
        if len(calls) == 1 and dies == "before":
            raise KeyboardInterrupt
        _pin(location, 2, partitions)
        if len(calls) == 1 and dies == "half way":
            raise KeyboardInterrupt
        put(f"{location}/commits/2", "v1\n{}")
        if len(calls) == 1:
            raise KeyboardInterrupt

    with mock.patch.object(sessions, "state_repartitioner", return_value=spread):
        with pytest.raises(KeyboardInterrupt):
            restore_savepoint(in_rocksdb, fork, shuffle_partitions=4)
        with pytest.raises(InvalidRequestError, match="a restored query is here"):
            restore_savepoint(in_rocksdb, fork)
        restored = restore_savepoint(in_rocksdb, fork, shuffle_partitions=4)
    assert restored.batch_id == 2
    assert calls == ([4] if dies == "after" else [4, 4])
    left = all_files(fork)
    assert "commits/2" in left
    assert UNFINISHED_FILE not in left


def test_spreading_does_not_finish_a_restarted_restore(in_rocksdb: str, fork: str) -> None:
    restore = partial(restore_savepoint, in_rocksdb, fork, shuffle_partitions=4)

    def spread(location: str, partitions: int) -> None:
        _pin(location, 2, partitions)
        with mock.patch.object(restoring, "write_spark_files", side_effect=KeyboardInterrupt):
            with pytest.raises(KeyboardInterrupt):
                restore()

    with mock.patch.object(sessions, "state_repartitioner", return_value=spread):
        with pytest.raises(CheckpointConflictError, check=of_kind("contended")):
            restore()
    assert UNFINISHED_FILE in all_files(fork)
