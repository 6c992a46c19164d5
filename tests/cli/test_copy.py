"""`holdfast copy`."""

import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from jobs.savepoint_crashes import Crash, latest_state
from jobs.stopped_query import all_files, remove, replace, states_after
from jobs.stores import Store, write_checkpoint

from holdfast import copy_savepoint, restore_savepoint, take_savepoint
from holdfast.cli.command_line import main
from holdfast.common import parallel
from holdfast.errors import CheckpointNotFoundError, InvalidRequestError
from holdfast.locations import copy_checkpoint, load_checkpoint
from holdfast.locations.adapters import file_system_for
from holdfast.locations.handles import files_of
from holdfast.locations.storages import contract, resolve_pointer
from holdfast.testing import ANY_CALL, Faults


def test_copy_of_a_checkpoint_with_shared_files_is_self_contained(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write_checkpoint(store.directory, 1)
    second = write_checkpoint(store.directory, 2, elements=9, before=first)
    target = f"file://{tmp_path}/archive"
    assert main(["copy", store.directory, target, "--json", *store.options]) == 0
    printed = json.loads(capsys.readouterr().out)
    pointer = printed.pop("pointer")
    copy = load_checkpoint(resolve_pointer(pointer))
    assert printed == {
        "from": f"{store.directory}/job/chk-2",
        "files": 3,
        "bytes": second.metadata.state_bytes + copy.metadata_bytes,
    }
    assert pointer.startswith(f"{target}/savepoint-job-")
    assert {file.uri.rpartition("/")[0] for file in files_of(copy.metadata.streams())} == {pointer}
    file_system_for(store.directory).delete_tree(store.directory)
    assert main(["verify", pointer]) == 0
    assert main(["copy", pointer, store.directory, *store.options]) == 0
    back = capsys.readouterr().out.splitlines()[-1]
    assert main(["diff", pointer, back, *store.options]) == 0


def test_a_dry_run_of_copy_reports_the_size_and_writes_nothing(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = write_checkpoint(store.directory, 1)
    command = ["copy", store.directory, f"file://{tmp_path}/archive", "--dry-run", *store.options]
    assert main([*command, "--json"]) == 0
    streams = capsys.readouterr()
    assert json.loads(streams.out) == {
        "from": f"{store.directory}/job/chk-1",
        "pointer": None,
        "files": len(files_of(checkpoint.metadata.streams())) + 1,
        "bytes": checkpoint.metadata.state_bytes + checkpoint.metadata_bytes,
    }
    assert "nothing was written" in streams.err
    assert main(command) == 0
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "archive").exists()


@pytest.mark.usefixtures("as_without_spark")
def test_a_copied_savepoint_of_a_query_is_restored_without_the_original(
    stopped_query: str, directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = take_savepoint(stopped_query, f"{directory}/savepoints")
    pointer = take_savepoint(stopped_query, f"{directory}/savepoints", base=base)
    expected = restore_savepoint(pointer, f"{directory}/a", checkpoint_dir=f"{directory}/a-state")
    whole = all_files(expected.checkpoint_location)
    assert main(["copy", pointer, f"file://{tmp_path}/archive"]) == 0
    copy = capsys.readouterr().out.strip()
    file_system_for(directory).delete_tree(f"{directory}/savepoints")
    assert main(["verify", copy]) == 0
    restored = restore_savepoint(copy, f"{directory}/b", checkpoint_dir=f"{directory}/b-state")
    files = all_files(restored.checkpoint_location)
    assert {path for path in whole if files.get(path) != whole[path]} == {
        "metadata",
        "holdfast.json",
        "holdfast-application.json",
        ".holdfast-restored",
    }
    assert set(files) == set(whole)
    state = latest_state(f"{directory}/b-state", restored.query_id)
    assert state == states_after(3)


@pytest.mark.usefixtures("as_without_spark")
def test_a_copy_is_as_good_a_base_as_its_original(stopped_query: str, directory: str) -> None:
    pointer = take_savepoint(stopped_query, f"{directory}/savepoints")
    copy = copy_savepoint(load_checkpoint(resolve_pointer(pointer)), f"{directory}/copies")
    base = copy.location.external_pointer
    next_one = take_savepoint(stopped_query, f"{directory}/more", base=base)
    files = files_of(load_checkpoint(resolve_pointer(next_one)).metadata.streams())
    assert {file.uri.rpartition("/")[0] for file in files} == {base}


def test_a_damaged_file_is_status_3_and_nothing_is_left(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    completed = write_checkpoint(store.directory, 1)
    damaged = files_of(completed.metadata.streams())[1]
    replace(damaged.uri, "x" * damaged.size)
    target = f"file://{tmp_path}/archive"
    assert main(["copy", store.directory, target, *store.options]) == 3
    streams = capsys.readouterr()
    assert streams.out == ""
    assert damaged.uri in streams.err
    assert all_files(target) == {}


def test_nothing_there_is_status_1(tmp_path: Path) -> None:
    assert main(["copy", f"file://{tmp_path}/none", f"file://{tmp_path}/archive"]) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_file_deleted_during_the_copy_leaves_no_files(tmp_path: Path) -> None:
    completed = write_checkpoint(f"file://{tmp_path}/checkpoints", 1)
    remove(files_of(completed.metadata.streams())[0].uri)
    with pytest.raises(CheckpointNotFoundError):
        copy_checkpoint(completed, f"file://{tmp_path}/archive")
    assert all_files(f"file://{tmp_path}/archive") == {}


def test_an_interruption_stops_running_copies_of_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(f"file://{tmp_path}/checkpoints", 1)
    target = f"file://{tmp_path}/archive"
    all_running = threading.Barrier(3)  # two copies, and the thread that waits for them

    def endless(_: BinaryIO) -> Iterator[bytes]:
        all_running.wait()
        while True:
            yield b"x"

    def interrupt(*_: Any, **__: Any) -> None:
        all_running.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(contract, "chunks", endless)
    monkeypatch.setattr(parallel, "wait", interrupt)
    assert main(["copy", f"file://{tmp_path}/checkpoints", target]) == 130
    assert all_files(target) == {}
    assert "interrupted; " in capsys.readouterr().err


def test_a_failure_at_any_call_leaves_nothing(faults: Faults, tmp_path: Path) -> None:
    completed = write_checkpoint(f"file://{tmp_path}", 1)
    for step in itertools.count(1):
        faults.calls.clear()
        faults.before(ANY_CALL, InvalidRequestError("not allowed"), step)
        try:
            copy = copy_checkpoint(completed, faults.directory)
        except InvalidRequestError:
            assert all_files(faults.inner_directory) == {}
        else:
            break
        finally:
            faults.clear()
    assert step > 5
    assert len(all_files(copy.location.external_pointer)) == 3


def test_a_crash_before_the_metadata_leaves_no_savepoint(faults: Faults, tmp_path: Path) -> None:
    completed = write_checkpoint(f"file://{tmp_path}", 1)
    faults.before("publish", Crash())
    with pytest.raises(Crash):
        copy_checkpoint(completed, faults.directory)
    faults.clear()
    left = all_files(faults.directory)
    assert not any(path.endswith("_metadata") for path in left)
