"""Requests that S3 is sent for a single key of a keyed state: their number follows the segments, and not the size of the state."""

import json
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from contracts.progress import progress_after_batch
from servers.s3 import settings_of
from servers.watched import WatchedBucket

import holdfast
from holdfast.backends import ValueStateDescriptor
from holdfast.backends.keyed import ColumnarStateTables, KeyedStateBackend
from holdfast.backends.keys import key_group_range, key_hash
from holdfast.cli.command_line import main
from holdfast.locations import (
    CheckpointMetadata,
    FileSystemCheckpointStorage,
    StoredOperator,
    StoredSubtask,
    complete_checkpoint,
)
from holdfast.locations.adapters import FileStateHandle, unregister_file_system
from holdfast.locations.file_systems import use_s3

GROUPS = 8
USER = pa.schema([("user", pa.int64())])
VISIT = pa.struct([("page", pa.string()), ("at", pa.int64())])

OF_A_SEGMENT = 8
"""Maximum number of requests for a segment of values with two fields: its end, and parts of each column."""


@pytest.fixture(autouse=True)
def _use_bucket(watched: WatchedBucket) -> Iterator[None]:
    server = watched.bucket.server
    use_s3(settings_of(server, endpoint=watched.faults.url, state_files="boto3"))
    yield
    unregister_file_system("s3")
    unregister_file_system("s3a")


def store_users(directory: str, *batches: range) -> tuple[str, int]:
    """Complete a checkpoint of two subtasks after each batch of users.

    Returns:
        The pointer of the last one, and the number of files of segments of the subtask of user 0.
    """
    access = FileSystemCheckpointStorage(directory).create_checkpoint_storage("job")
    access.initialize_base_locations_for_checkpoint()
    subtasks = {0: StoredSubtask(), 1: StoredSubtask()}
    pointer = ""
    for number, users in enumerate(batches, 1):
        location = access.initialize_location_for_checkpoint(number)
        ids = pa.array(users, pa.int64())
        of_row = key_hash([ids]).to_numpy().astype(np.int64) % GROUPS
        for index, before in subtasks.items():
            groups = key_group_range(GROUPS, len(subtasks), index)
            tables = ColumnarStateTables(groups, before.managed_keyed, may_refer=False)  # type: ignore[arg-type]
            backend = KeyedStateBackend(tables, USER, GROUPS, groups)
            is_mine = (groups.start_key_group <= of_row) & (of_row <= groups.end_key_group)
            keys = backend.keys([ids.filter(pa.array(is_mine))])
            at = keys.columns[0]
            visits = pa.StructArray.from_arrays([at.cast(pa.string()), at], fields=list(VISIT))
            backend.get_state(ValueStateDescriptor("visits", VISIT)).columns.put(keys, visits)
            subtasks[index] = backend.snapshot(number, location).run().state
            backend.close()
        metadata = CheckpointMetadata(
            job_id="job",
            checkpoint_id=number,
            created_ms=0,
            duration_ms=0.0,
            writer="test",
            operators={"op": StoredOperator(2, GROUPS, dict(subtasks), key=("user",))},
            coordinator_states=progress_after_batch(0),
        )
        pointer = complete_checkpoint(location, metadata).location.external_pointer
    streams = subtasks[int(of_row[0]) * 2 // GROUPS].streams()
    return pointer, len([stream for stream in streams if isinstance(stream, FileStateHandle)])


@pytest.mark.parametrize("users", [20_000, 400_000])
def test_lookup_reads_a_few_blocks_of_each_segment(
    watched: WatchedBucket, users: int, capsys: pytest.CaptureFixture[str]
) -> None:
    later = [range(0, users, 20 + number) for number in range(3)]
    for batches in ([range(users)], [range(users), *later]):
        pointer, files = store_users(f"{watched.directory}/{len(batches)}", *batches)
        watched.faults.requests.clear()
        (row,) = holdfast.read_state(pointer, "op", "visits", key=0).to_pylist()
        assert row["value"] == {"page": "0", "at": 0}
        max_requests = 1 + OF_A_SEGMENT * files  # one for `_metadata`
        assert watched.counts()["GetObject"] <= max_requests
        watched.faults.requests.clear()
        assert main(["cat", pointer, "op", "visits", "--key", "user=0", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["value"] == {"page": "0", "at": 0}
        max_requests += 1  # the command looks for the checkpoint first
        assert watched.counts()["GetObject"] <= max_requests
