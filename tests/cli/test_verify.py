"""`holdfast verify`."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jobs.stopped_query import put, remove, text_of
from jobs.stores import Store, write_checkpoint

from holdfast import take_savepoint
from holdfast.cli import verify as verify_command
from holdfast.cli.command_line import main
from holdfast.common import crc32c
from holdfast.errors import CheckpointNotFoundError, StorageUnavailableError
from holdfast.locations import CompletedCheckpoint, verify_files
from holdfast.locations.coordination import VerifiedFile
from holdfast.locations.handles import files_of
from holdfast.spark_progress import verify_checkpoints
from holdfast.testing import Faults


def verify_json(capsys: pytest.CaptureFixture[str], status: int, *arguments: str) -> Any:
    """Run the command with the expected status, and return its JSON."""
    assert main(["verify", *arguments, "--json"]) == status
    return json.loads(capsys.readouterr().out)


def flip(uri: str) -> None:
    """Change the last character of a file."""
    text = text_of(uri)
    remove(uri)
    put(uri, text[:-1] + chr(ord(text[-1]) ^ 1))


def test_shared_files_are_read_once_and_all_is_well(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write_checkpoint(store.directory, 1)
    second = write_checkpoint(store.directory, 2, elements=9, before=first)
    files = files_of([*first.metadata.streams(), *second.metadata.streams()])
    assert len(files) == 3
    assert verify_json(capsys, 0, "--all", store.directory, *store.options) == {
        "checkpoints": [f"{store.directory}/job/chk-1", f"{store.directory}/job/chk-2"],
        "files": 5,
        "bytes": sum(file.size for file in files) + first.metadata_bytes + second.metadata_bytes,
        "failed": [],
        "damaged": [],
    }
    printed = verify_json(capsys, 0, store.directory, *store.options)
    assert printed["checkpoints"] == [f"{store.directory}/job/chk-2"]
    assert printed["files"] == 3


def test_every_damaged_or_missing_file_is_listed(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged, gone = (
        files_of(write_checkpoint(store.directory, number, elements=n).metadata.streams())[0]
        for number, n in ((1, 100), (2, 200))
    )
    write_checkpoint(store.directory, 3)
    flip(damaged.uri)
    remove(gone.uri)
    flip(f"{store.directory}/job/chk-3/_metadata")
    printed = verify_json(capsys, 3, "--all", store.directory, *store.options)
    wrong = {file["uri"]: (file["problem"], file["bytes"]) for file in printed["failed"]}
    assert wrong == {
        damaged.uri: ("corrupt", damaged.size),
        gone.uri: ("missing", gone.size),
        f"{store.directory}/job/chk-3/_metadata": ("corrupt", 0),
    }
    assert all(file["uri"] in file["message"] for file in printed["failed"])
    assert printed["files"] == 7
    assert printed["damaged"] == [f"{store.directory}/job/chk-{number}" for number in (1, 2, 3)]
    assert main(["verify", "--all", store.directory, *store.options]) == 3
    streams = capsys.readouterr()
    assert "2 checkpoints, 7 files" in streams.out
    assert "3 files corrupt or missing" in streams.out
    assert all(uri in streams.out for uri in wrong)


def test_verify_lists_the_checkpoints_of_a_damaged_file(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    write_checkpoint(store.directory, 1)
    shared = write_checkpoint(store.directory, 2, elements=9)
    flip(files_of(shared.metadata.streams())[-1].uri)  # of the second subtask
    write_checkpoint(store.directory, 3, elements=9, before=shared)
    printed = verify_json(capsys, 3, "--all", store.directory, *store.options)
    damaged = [f"{store.directory}/job/chk-2", f"{store.directory}/job/chk-3"]
    assert (len(printed["failed"]), printed["damaged"]) == (1, damaged)
    assert main(["verify", "--all", store.directory, *store.options]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3:-1] == [f"damaged checkpoint: {pointer}" for pointer in damaged]


def test_nothing_there_is_status_1(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", store.directory, *store.options]) == 1
    assert main(["verify", "--all", store.directory, *store.options]) == 1
    assert capsys.readouterr().err.count(store.directory) == 2


def test_one_wrong_pointer_of_two_is_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = f"file://{tmp_path}"
    write_checkpoint(directory, 1)
    arguments = (f"{directory}/job/chk-1", f"{directory}/job/chk-2")
    assert verify_json(capsys, 1, *arguments)["checkpoints"] == [arguments[0]]


@pytest.mark.usefixtures("as_without_spark")
def test_spark_s_files_of_savepoints_are_read_too(
    stopped_query: str, directory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pointer = take_savepoint(stopped_query, f"{directory}/savepoints")
    assert main(["show", pointer, "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["spark_files"]["files"]
    delta = next(file["uri"] for file in files if file["path"].endswith(".delta"))
    assert verify_json(capsys, 0, pointer)["failed"] == []
    flip(delta)
    [wrong] = verify_json(capsys, 3, pointer)["failed"]
    assert (wrong["uri"], wrong["problem"]) == (delta, "corrupt")


def test_files_deleted_by_a_running_job_are_not_damage(tmp_path: Path) -> None:
    first = write_checkpoint(f"file://{tmp_path}", 1)
    second = write_checkpoint(f"file://{tmp_path}", 2)
    first.discard()
    gone: list[CompletedCheckpoint] = []
    results = list(verify_checkpoints([first, second], on_gone=gone.append))
    assert gone == [first]
    assert [file.failure for file in results] == [None, None]
    assert {file.uri for file in results} == {
        file.uri for file in files_of(second.metadata.streams())
    }


@pytest.mark.parametrize(("options", "is_reported"), [([], True), (["--all"], False)])
def test_a_checkpoint_deleted_during_the_read_is_not_verified(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    *,
    is_reported: bool,
) -> None:
    directory = f"file://{tmp_path}"
    first, second = write_checkpoint(directory, 1), write_checkpoint(directory, 2)

    def deleted_before(*arguments: Any, **options: Any) -> Iterator[VerifiedFile]:
        first.discard()
        return verify_checkpoints(*arguments, **options)

    monkeypatch.setattr(verify_command, "verify_checkpoints", deleted_before)
    pointers = [checkpoint.location.external_pointer for checkpoint in (first, second)]
    assert main(["verify", *options, *pointers, "--json"]) == (1 if is_reported else 0)
    streams = capsys.readouterr()
    printed = json.loads(streams.out)
    assert (printed["checkpoints"], printed["files"]) == (pointers[1:], 3)
    assert ("was deleted" in streams.err) == is_reported


def test_it_continues_after_an_unreadable_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = f"file://{tmp_path}"
    pointers = [write_checkpoint(directory, number).location.external_pointer for number in (1, 2)]
    file = tmp_path / "job/chk-1/_metadata"
    newer = bytearray(file.read_bytes())
    newer[11] = 99
    newer[-4:] = crc32c(memoryview(newer)[:-4]).to_bytes(4)
    file.unlink()
    file.write_bytes(newer)
    printed = verify_json(capsys, 3, *pointers)
    assert printed["checkpoints"] == pointers[1:]
    assert [file["problem"] for file in printed["failed"]] == ["unreadable"]
    assert printed["failed"][0]["uri"] == f"{pointers[0]}/_metadata"


def test_a_failing_store_does_not_make_a_checkpoint_missing(faults: Faults) -> None:
    completed = write_checkpoint(faults.directory, 1)
    gone = files_of(completed.metadata.streams())[0].uri
    remove(gone.replace(faults.directory, faults.inner_directory))
    faults.before("read", StorageUnavailableError("gone fishing"), "every")
    failures = {file.uri: type(file.failure) for file in verify_checkpoints([completed])}
    assert failures.pop(gone) is CheckpointNotFoundError
    assert list(failures.values()) == [StorageUnavailableError]


def test_a_pipe_in_place_of_a_file_is_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    completed = write_checkpoint(f"file://{tmp_path}", 1)
    file = files_of(completed.metadata.streams())[0].uri
    remove(file)
    os.mkfifo(file.removeprefix("file://"))
    [wrong] = verify_json(capsys, 3, f"file://{tmp_path}")["failed"]
    assert (wrong["uri"], wrong["problem"]) == (file, "unreadable")


def test_a_failing_store_makes_a_file_unreadable(faults: Faults) -> None:
    completed = write_checkpoint(faults.directory, 1)
    streams = completed.metadata.streams()
    reported: list[int] = []
    faults.before("read", StorageUnavailableError("gone fishing"), "every")
    results = list(verify_files(streams, on_bytes=reported.append))
    assert [type(file.failure) for file in results] == [StorageUnavailableError] * 2
    assert sum(reported) == sum(file.size for file in results) == completed.metadata.state_bytes
