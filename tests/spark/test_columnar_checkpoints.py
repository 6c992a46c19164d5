"""Columnar tables in checkpoints of a driver without Spark: the read_totals rows are the written ones."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs.coordinator import begin_checkpoint, coordinator, progress
from jobs.segments import MAX_PARALLELISM, UID, overwrite, shared_files, shared_in

import holdfast
from holdfast.backends.keyed import TableSpec
from holdfast.backends.keyed.segments import ColumnarStateTables, MergePolicy
from holdfast.backends.keyed.table import Identities
from holdfast.backends.keys import key_group_range
from holdfast.errors import CheckpointCorruptedError
from holdfast.locations import sweep
from holdfast.locations.adapters import file_system_for
from holdfast.locations.coordination import load_checkpoints
from holdfast.locations.handles import SegmentsStateHandle
from holdfast.spark.query import CLEANER, CheckpointCoordinator
from holdfast.spark.subtask import Acknowledgement

pytestmark = pytest.mark.usefixtures("memory_clock")

TOTALS = TableSpec(
    "totals", "value", pa.schema([("key", pa.int64())]), pa.schema([("value", pa.int64())])
)
POLICY = MergePolicy(fan_in=3, rewrite_factor=0.0)
"""Merges early, so that segments are often replaced."""

Totals = dict[int, int]


def write(driver: CheckpointCoordinator, batch_id: int, new: Totals) -> None:
    """Run a batch that puts a total for some keys."""
    pending = begin_checkpoint(driver, batch_id)
    subtasks = pending.assigned[UID].subtasks
    acknowledgements = []
    for index, subtask in enumerate(subtasks):
        groups = key_group_range(MAX_PARALLELISM, len(subtasks), index)
        handles = [
            handle for handle in subtask.managed_keyed if isinstance(handle, SegmentsStateHandle)
        ]
        tables = ColumnarStateTables(
            groups, handles, policy=POLICY, may_refer=pending.may_refer[UID]
        )
        keys = sorted(
            (key for key in new if key % MAX_PARALLELISM in groups),
            key=lambda key: (key % MAX_PARALLELISM, key),
        )
        if keys:
            sort_keys = np.array([(key % MAX_PARALLELISM) << 48 | key for key in keys], np.uint64)
            identities = Identities(sort_keys, (pa.array(keys, pa.int64()),))
            values = pa.array([new[key] for key in keys], pa.int64())
            tables.table(TOTALS).write(identities, [values])
        state = tables.snapshot(pending.checkpoint_id, pending.location).run().state
        tables.close()
        acknowledgements.append(Acknowledgement(index, index, state, pending.checkpoint_id))
    driver.complete(pending, {UID: acknowledgements}, progress(batch_id))


def read_totals(driver: CheckpointCoordinator) -> Totals:
    """Read the last checkpoint with the public function."""
    pointer = load_checkpoints(driver.job.access)[-1].location.external_pointer
    if not holdfast.states(pointer).num_rows:
        return {}
    table = holdfast.read_state(pointer, UID, "totals")
    keys = table["key"].to_pylist()
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, table["value"].to_pylist(), strict=True))


batches = st.lists(
    st.dictionaries(st.integers(0, 400), st.integers(-9, 9), max_size=60), min_size=1, max_size=5
)


@given(
    batches=batches,
    parallelisms=st.lists(st.integers(1, 4), min_size=5, max_size=5),
    num_retained=st.integers(1, 3),
    inline_threshold=st.sampled_from([0, 20 << 10]),
)
def test_checkpoints_have_all_rows_at_any_parallelism(
    memory_directory: str,
    batches: list[Totals],
    parallelisms: list[int],
    num_retained: int,
    inline_threshold: int,
) -> None:
    """The job restarts for each batch; shared files are deleted as soon as they are unreferenced."""
    file_system_for(memory_directory).delete_tree(f"{memory_directory}/job")
    expected: Totals = {}
    for batch_id, new in enumerate(batches):
        driver = coordinator(
            memory_directory,
            parallelism=parallelisms[batch_id],
            num_retained=num_retained,
            inline_threshold=inline_threshold,
        )
        write(driver, batch_id, new)
        CLEANER.wait()
        expected |= new
        assert read_totals(driver) == expected
        retained = load_checkpoints(driver.job.access)
        assert len(retained) == min(batch_id + 1, num_retained)
        assert shared_files(memory_directory) == shared_in(
            *(checkpoint.metadata for checkpoint in retained)
        )
    assert not sweep(memory_directory, "job", grace_s=0).files


def test_checkpoint_writes_only_changed_rows(memory_directory: str) -> None:
    driver = coordinator(memory_directory, num_retained=9)
    write(driver, 0, dict.fromkeys(range(5000), 0))
    before = shared_files(memory_directory)
    write(driver, 1, {7: 1})
    new = shared_files(memory_directory) - before
    assert before <= shared_in(load_checkpoints(driver.job.access)[-1].metadata)
    assert len(new) == 1
    assert read_totals(driver) == {key: int(key == 7) for key in range(5000)}


def test_restored_tables_do_not_need_the_other_job(memory_directory: str) -> None:
    other = coordinator(memory_directory, job_id="other")
    write(other, 0, {key: key for key in range(300)})
    start = load_checkpoints(other.job.access)[-1].location.external_pointer
    driver = coordinator(memory_directory, start=start, parallelism=3)
    write(driver, 0, {7: -1})
    file_system_for(memory_directory).delete_tree(f"{memory_directory}/other")
    assert read_totals(driver) == {key: key for key in range(300)} | {7: -1}
    write(driver, 1, {8: -1})
    assert read_totals(driver)[8] == -1


@pytest.mark.parametrize("offset", [40, 2000])
def test_damaged_segment_is_refused(memory_directory: str, offset: int) -> None:
    driver = coordinator(memory_directory)
    write(driver, 0, {key: key for key in range(3000)})
    for uri in shared_files(memory_directory):
        with file_system_for(uri).open(uri) as stream:
            content = bytearray(stream.read())
        content[offset] ^= 1
        overwrite(uri, content)
    with pytest.raises(CheckpointCorruptedError, match="/job/shared/"):
        read_totals(driver)
