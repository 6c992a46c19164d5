"""Canonical savepoints of stopped queries with real keyed state, without Spark."""

import itertools
import json
from functools import partial

import pyarrow as pa
import pytest
from contracts.files import files_below
from contracts.values import read
from jobs.all_states import (
    KEYED_STATES,
    KEYS,
    TTL_MS,
    all_states_job,
    write_stopped_with_all_states,
)
from jobs.savepoint_crashes import crashes_at
from jobs.segments import overwrite
from jobs.stopped_query import QUERY, all_files

from holdfast import restore_savepoint, take_savepoint
from holdfast.backends.inspection import read_state
from holdfast.backends.keyed import BACKEND_NAMES, BackendName, read_manifest
from holdfast.backends.keys import KeyGroupRange
from holdfast.cli.command_line import main
from holdfast.errors import (
    CheckpointCorruptedError,
    CheckpointError,
    InvalidRequestError,
    StorageUnavailableError,
)
from holdfast.locations import load_checkpoint, verify_files
from holdfast.locations.adapters import FileStateHandle, file_system_for
from holdfast.locations.handles import SegmentsStateHandle
from holdfast.locations.metadata import CheckpointMetadata
from holdfast.locations.storages import resolve_pointer
from holdfast.spark_progress import all_streams
from holdfast.testing import ANY_CALL, Faults

pytestmark = pytest.mark.usefixtures("as_without_spark")

TIMERS = "_timers/event/timers"
Captured = pytest.CaptureFixture[str]


def metadata_of(pointer: str) -> CheckpointMetadata:
    return load_checkpoint(resolve_pointer(pointer)).metadata


def keyed_handles(pointer: str) -> list[SegmentsStateHandle]:
    subtasks = metadata_of(pointer).operators["operator"].subtasks.values()
    handles = [handle for subtask in subtasks for handle in subtask.managed_keyed]
    return [handle for handle in handles if isinstance(handle, SegmentsStateHandle)]


def rows_of(pointer: str, state: str) -> list[str]:
    table: pa.Table = read_state(pointer, "operator", state)
    return sorted(map(str, table.to_pylist()))


@pytest.mark.parametrize("backend", BACKEND_NAMES)
def test_canonical_savepoint_is_complete_for_every_backend(
    directory: str, backend: BackendName
) -> None:
    location = write_stopped_with_all_states(directory, backend)
    native = take_savepoint(location, f"{directory}/savepoints")
    pointer = take_savepoint(location, f"{directory}/savepoints", format="canonical")
    file_system_for(directory).delete_tree(f"{directory}/checkpoints")
    file_system_for(directory).delete_tree(location)

    uris = {file.uri for file in verify_files(metadata_of(pointer).streams())}
    assert uris
    assert all(uri.startswith(f"{pointer}/") for uri in uris)
    for state in ("batches", TIMERS, *set(KEYED_STATES) - {"last"}):
        assert rows_of(pointer, state) == rows_of(native, state)
    # Values with a time to live of a second are from the last batch.
    assert len(rows_of(pointer, "last")) == len(KEYS) - 150
    assert set(rows_of(pointer, "last")) <= set(rows_of(native, "last"))
    for handle in keyed_handles(pointer):
        manifest = read_manifest([handle], KeyGroupRange(*handle.key_groups))
        assert len(handle.segments) == 1
        assert [len(table.runs) for table in manifest.tables.values()] == [1] * 5

    for number, reader in enumerate(BACKEND_NAMES):
        checkpoints = f"{directory}/forked-{reader}"
        fork = restore_savepoint(pointer, f"{directory}/{reader}", checkpoint_dir=checkpoints)
        job = all_states_job(
            checkpoints,
            backend=reader,
            parallelism=number + 1,
            job_id=fork.query_id,
            query_id=fork.query_id,
        )
        rows = [{"key": key, "id": 0} for key in KEYS]
        output = job.run(rows, times=(3 * TTL_MS, 0))
        batches = {key: min(4, key // 50 + 1) for key in KEYS}
        assert {row["key"]: row["total"] for row in output} == {
            key: 10 * key * count + sum(range(count)) for key, count in batches.items()
        }
        latest = job.latest.location.external_pointer
        table = read_state(latest, "operator", "ids")
        lists = {row["key"]: row["value"] for row in table.to_pylist()}
        assert lists == {
            key: [*(10 * key + batch for batch in range(count)), 0]
            for key, count in batches.items()
        }
        assert len(rows_of(latest, TIMERS)) == len(KEYS)


def test_commands_accept_canonical_savepoints(directory: str, capsys: Captured) -> None:
    location = write_stopped_with_all_states(directory)
    savepoints = f"{directory}/savepoints"
    assert main(["savepoint", location, savepoints]) == 0
    native = capsys.readouterr().out.strip()
    assert main(["savepoint", location, savepoints, "--format", "canonical"]) == 0
    pointer = capsys.readouterr().out.strip()
    assert main(["verify", pointer]) == 0
    assert main(["copy", pointer, f"{directory}/copies"]) == 0
    copy = capsys.readouterr().out.strip().splitlines()[-1]
    assert main(["cat", copy, "operator", "totals", "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(KEYS)
    assert main(["show", copy, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert "totals" in json.dumps(shown)
    assert main(["diff", copy, pointer]) == 0
    assert main(["diff", native, pointer]) == 1  # expired values are not in it


def test_canonical_savepoint_can_only_be_a_base_of_a_native_one(directory: str) -> None:
    location = write_stopped_with_all_states(directory)
    savepoints = f"{directory}/savepoints"
    canonical = take_savepoint(location, savepoints, format="canonical")
    with pytest.raises(InvalidRequestError, match="canonical savepoint has no base"):
        take_savepoint(location, savepoints, base=canonical, format="canonical")
    with pytest.raises(InvalidRequestError, match="'native' or 'canonical'"):
        take_savepoint(location, savepoints, format="incremental")  # type: ignore[arg-type]
    assert len(list(all_files(savepoints))) == len(files_below(canonical))
    # Keyed state is copied, because the base has other files of it. The rest is referred to.
    native = take_savepoint(location, savepoints, base=canonical)
    handles = keyed_handles(native)
    assert all(
        file.uri.startswith(f"{native}/")
        for handle in handles
        for file in handle.streams()
        if isinstance(file, FileStateHandle)
    )
    files = verify_files(all_streams(load_checkpoint(resolve_pointer(native))))
    assert any(file.uri.startswith(f"{canonical}/") for file in files)


def test_canonical_savepoint_without_keyed_state_equals_a_native_one(
    stopped_query: str, directory: str
) -> None:
    native = take_savepoint(stopped_query, f"{directory}/native")
    canonical = take_savepoint(stopped_query, f"{directory}/canonical", format="canonical")
    assert sorted(all_files(native).values())[1:] != []
    assert len(files_below(native)) == len(files_below(canonical))


class TestFaults:
    def test_fault_at_any_call_leaves_no_files(self, faults: Faults) -> None:
        location = write_stopped_with_all_states(faults.directory)
        target = f"{faults.directory}/savepoints"
        for number in itertools.count(1, 23):
            faults.calls.clear()
            error = StorageUnavailableError("as planned")
            faults.before(ANY_CALL, error, number)
            try:
                take_savepoint(location, target, format="canonical")
            except CheckpointError:
                pass
            else:
                break
            finally:
                faults.clear()
            assert all_files(target) == {}
        assert number > 100

    def test_dead_savepoint_is_not_a_savepoint(self, faults: Faults) -> None:
        location = write_stopped_with_all_states(faults.directory)
        for step in itertools.count(1, 37):
            target = f"{faults.directory}/savepoints-{step}"
            take = partial(take_savepoint, location, target, format="canonical")
            if not crashes_at(faults, step, take):
                break
            assert not [path for path in all_files(target) if path.endswith("/_metadata")]
        assert step > 100

    @pytest.mark.parametrize("backend", BACKEND_NAMES)
    def test_damaged_file_is_named(self, directory: str, backend: BackendName) -> None:
        location = write_stopped_with_all_states(directory, backend)
        handle, _ = keyed_handles(f"{directory}/checkpoints/{QUERY}/chk-4")
        file = next(iter(handle.segments.values()))
        assert isinstance(file, FileStateHandle)
        content = bytearray(read(file))
        content[len(content) // 3] ^= 1
        overwrite(file.uri, content)
        with pytest.raises(CheckpointCorruptedError) as error:
            take_savepoint(location, f"{directory}/savepoints", format="canonical")
        assert error.value.location == file.uri
        assert all_files(f"{directory}/savepoints") == {}
