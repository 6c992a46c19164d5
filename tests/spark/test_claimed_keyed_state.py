"""Keyed state of a savepoint that a job claims, with each backend that has its own files."""

import pytest
from contracts.files import files_below
from jobs.all_states import KEYS as ALL_STATES_KEYS
from jobs.all_states import all_states_job, write_stopped_with_all_states
from jobs.keyed import totals_job, totals_rows

from holdfast import take_savepoint
from holdfast.backends.inspection import read_state
from holdfast.backends.keyed import BackendName
from holdfast.locations import CompletedCheckpoint, copy_checkpoint
from holdfast.locations.handles import files_of
from holdfast.spark.query import CLEANER
from holdfast.spark.settings import StateSettings

pytestmark = pytest.mark.usefixtures("task_directory")

KEYS = range(4000)


def own_bytes(checkpoint: CompletedCheckpoint) -> int:
    """Return the bytes of files that are in the job's own directory."""
    own = checkpoint.location.external_pointer.rpartition("/")[0]
    files = files_of(checkpoint.metadata.streams())
    return sum(file.size for file in files if file.uri.startswith(f"{own}/"))


@pytest.mark.parametrize("backend", ["columnar", "rocksdb"])
@pytest.mark.parametrize("parallelism", [2, 3])
def test_claimed_savepoint_is_deleted_after_its_segments_are_merged(
    memory_directory: str, backend: BackendName, parallelism: int
) -> None:
    state = StateSettings(local_bytes=1 << 30, duplicate_files=True, backend=backend)
    former = totals_job(memory_directory, job_id="former", state=state)
    former.run(totals_rows(KEYS))
    copies = [
        copy_checkpoint(former.latest, f"{memory_directory}/savepoints").location.external_pointer
        for _ in range(2)
    ]
    bytes_written = {}
    for claims, copy in zip((False, True), copies, strict=True):
        claimant = totals_job(
            memory_directory,
            state=state,
            job_id=f"claims-{claims}".lower(),
            start=copy,
            claims_start=claims,
            parallelism=parallelism,
        )
        output = claimant.run(totals_rows(KEYS[:10]))
        assert {row["key"]: row["rows"] for row in output} == dict.fromkeys(KEYS[:10], 2)
        bytes_written[claims] = own_bytes(claimant.latest)
    assert bytes_written[True] < bytes_written[False] / 3
    assert files_below(copies[0])
    rounds = 2
    while files_below(copies[1]) and rounds < 40:  # until its segments were merged into others
        output = claimant.run(totals_rows(KEYS))
        assert {row["rows"] for row in output} <= {rounds, rounds + 1}
        assert len(output) == len(KEYS)
        rounds += 1
    assert not files_below(copies[1])
    assert files_below(copies[0])


@pytest.mark.parametrize("backend", ["columnar", "rocksdb"])
def test_claimed_canonical_savepoint_is_deleted_when_unreferenced(
    directory: str, backend: BackendName
) -> None:
    location = write_stopped_with_all_states(directory)
    pointer = take_savepoint(location, f"{directory}/savepoints", format="canonical")
    claimant = all_states_job(f"{directory}/new", backend=backend, job_id="new", claimed=pointer)
    rows = [{"key": key, "id": 0} for key in ALL_STATES_KEYS]
    for number in range(20):
        claimant.run(rows if number else rows[:1])
        CLEANER.wait()
        refers = any(pointer in file.uri for file in files_of(claimant.latest.metadata.streams()))
        assert refers <= bool(files_below(pointer))
        if number == 0:
            assert refers == (backend == "columnar")  # RocksDB has read it into its own files
            assert claimant.latest.metadata.claimed
        elif not files_below(pointer):
            break
    assert not files_below(pointer)
    totals = read_state(claimant.latest.location.external_pointer, "operator", "totals")
    batches = {key: min(4, key // 50 + 1) for key in ALL_STATES_KEYS}
    assert {row["key"]: row["value"] for row in totals.to_pylist()} == {
        key: 10 * key * count + sum(range(count)) for key, count in batches.items()
    }
