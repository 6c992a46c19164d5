"""`holdfast clean`: deleted files, kept files and messages."""

import json
import os
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from cli.stores import options_for
from servers.buckets import MemoryBucket
from servers.s3 import settings_of

from holdfast.cli import clean
from holdfast.cli.command_line import main
from holdfast.locations import FileSystemCheckpointStorage, complete_checkpoint, sweep, use_s3
from holdfast.locations.adapters import ByteStreamStateHandle
from holdfast.locations.coordination import SweepReport
from holdfast.testing import metadata_of

RANDOM = "0123456789abcdef" * 2
OLD_S = 1_700_000_000
OLD = "2023-11-14T22:13:20+00:00"


def complete(directory: str, job: str) -> None:
    """Give a job the checkpoints 2 and 10."""
    access = FileSystemCheckpointStorage(directory).create_checkpoint_storage(job)
    access.initialize_base_locations_for_checkpoint()
    for number in (2, 10):
        location = access.initialize_location_for_checkpoint(number)
        state = ByteStreamStateHandle(b"12345")
        complete_checkpoint(location, metadata_of(state, checkpoint_id=number, job_id=job))


def write_leftover(path: Path, *, age_s: float | None = None) -> Path:
    """Write a file as a crash leaves one; by default an old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"1234567")
    modified = OLD_S if age_s is None else time.time() - age_s
    for changed in (path, path.parent):
        os.utime(changed, (modified, modified))
    return path


@pytest.fixture
def directory(tmp_path: Path) -> str:
    """Two jobs. One has left a failed checkpoint, an orphan, and a young file."""
    for job in ("clean", "job"):
        complete(f"file://{tmp_path}", job)
    write_leftover(tmp_path / "job" / "chk-3" / RANDOM)
    write_leftover(tmp_path / "job" / "shared" / f"01234567-{RANDOM}")
    write_leftover(tmp_path / "job" / "shared" / RANDOM[::-1], age_s=3600)
    return f"file://{tmp_path}"


def paths(directory: str) -> set[str]:
    root = Path(directory.removeprefix("file://"))
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def test_a_dry_run_lists_leftovers_and_deletes_nothing(
    directory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = paths(directory)
    assert main(["clean", directory, "--json"]) == 0
    streams = capsys.readouterr()
    assert json.loads(streams.out) == {
        "dry_run": True,
        "found": [
            {
                "job": "job",
                "kind": "file",
                "uri": f"{directory}/job/chk-3/{RANDOM}",
                "size_bytes": 7,
                "modified": OLD,
            },
            {
                "job": "job",
                "kind": "file",
                "uri": f"{directory}/job/shared/01234567-{RANDOM}",
                "size_bytes": 7,
                "modified": OLD,
            },
            {
                "job": "job",
                "kind": "directory",
                "uri": f"{directory}/job/chk-3",
                "size_bytes": None,
                "modified": None,
            },
        ],
        "total_bytes": 14,
        "within_grace": 1,
        "failed": [],
    }
    assert streams.err == (
        "holdfast: 2 files, 1 unfinished checkpoint (14 B) would be deleted; use --yes to delete; "
        "1 more within the grace period\n"
    )
    assert paths(directory) == before
    assert main(["clean", directory, "--dry-run"]) == 0
    assert paths(directory) == before
    with pytest.raises(SystemExit):
        main(["clean", directory, "--dry-run", "--yes"])
    assert paths(directory) == before


def test_listed_leftovers_are_deleted_and_none_is_left(
    directory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = paths(directory)
    assert main(["clean", directory, "--yes"]) == 0
    streams = capsys.readouterr()
    head, *rows = streams.out.splitlines()
    assert head.split() == ["job", "kind", "size", "age", "path"]
    assert len(rows) == 3
    assert "deleted 2 files, 1 unfinished checkpoint (14 B)" in streams.err
    gone = {"job/chk-3", f"job/chk-3/{RANDOM}", f"job/shared/01234567-{RANDOM}"}
    assert before - paths(directory) == gone
    assert main(["clean", directory, "--yes"]) == 1
    assert capsys.readouterr().out == ""


def test_one_job_is_cleaned_and_the_others_are_left(
    directory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = paths(directory)
    assert main(["clean", directory, "--job", "clean", "--yes"]) == 1
    assert main(["clean", directory, "--job", "jobs", "--yes"]) == 1
    assert "jobs: clean, job" in capsys.readouterr().err
    assert paths(directory) == before


def test_a_shorter_grace_is_for_stopped_jobs(
    directory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["clean", directory, "--grace", "0s"]) == 0
    assert "3 files" in capsys.readouterr().err
    before = paths(directory)
    assert main(["clean", directory, "--grace", "9m", "--yes"]) == 2
    assert "--stopped" in capsys.readouterr().err
    assert paths(directory) == before
    assert main(["clean", directory, "--grace", "30m", "--yes"]) == 0
    assert f"job/shared/{RANDOM[::-1]}" not in paths(directory)
    write_leftover(Path(directory.removeprefix("file://")) / "job" / "shared" / RANDOM, age_s=5)
    assert main(["clean", directory, "--grace", "0s", "--stopped", "--yes"]) == 0
    assert f"job/shared/{RANDOM}" not in paths(directory)


@pytest.mark.parametrize("text", ["1", "-1h", "h", "1w"])
def test_an_invalid_grace_is_wrong_usage(
    directory: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["clean", directory, f"--grace={text}"])
    assert caught.value.code == 2
    assert "invalid duration" in capsys.readouterr().err


def test_a_job_with_a_damaged_checkpoint_is_kept_and_others_are_cleaned(
    directory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(directory.removeprefix("file://"))
    metadata = root / "job" / "chk-10" / "_metadata"
    metadata.write_bytes(metadata.read_bytes()[:-1])
    orphan = write_leftover(root / "later" / "shared" / RANDOM)
    before = paths(directory)
    assert main(["clean", directory, "--yes", "--json"]) == 3
    streams = capsys.readouterr()
    printed = json.loads(streams.out)
    assert [row["uri"] for row in printed["found"]] == [f"file://{orphan}"]
    assert [entry["job"] for entry in printed["failed"]] == ["job"]
    assert "job/chk-10/_metadata" in printed["failed"][0]["error"]
    assert "job/chk-10/_metadata" in streams.err
    assert before - paths(directory) == {str(orphan.relative_to(root))}
    assert "; 1 job could not be swept" in streams.err


def test_summary_without_a_swept_job_reports_no_files(
    directory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    metadata = Path(directory.removeprefix("file://")) / "job" / "chk-10" / "_metadata"
    metadata.write_bytes(b"")
    assert main(["clean", directory, "--job", "job"]) == 3
    summary, _ = capsys.readouterr().err.splitlines()
    assert summary == "holdfast: 1 job could not be swept"


def test_unfinished_savepoints_are_deleted_too(directory: str, tmp_path: Path) -> None:
    unfinished = write_leftover(tmp_path / "savepoints" / "savepoint-job-0123456789ab" / RANDOM)
    assert main(["clean", directory, "--yes"]) == 0
    assert unfinished.exists()
    savepoints = f"file://{tmp_path}/savepoints"
    assert main(["clean", directory, "--savepoint-dir", savepoints, "--yes"]) == 0
    assert not unfinished.parent.exists()


def test_unfinished_savepoints_without_checkpoints_are_deleted_too(
    directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = "6f0c3c4e-5f65-4c8e-9a1a-0d4b5f3f9d1c"
    savepoints = tmp_path.parent / f"{tmp_path.name}-savepoints"
    unfinished = write_leftover(savepoints / f"savepoint-{query}-0123456789ab" / RANDOM)
    young = write_leftover(savepoints / "savepoint-other-0123456789ab" / RANDOM, age_s=3600)
    finished = write_leftover(savepoints / f"savepoint-{query}-ba9876543210" / RANDOM)
    write_leftover(finished.parent / "_metadata")
    savepoint_options = ["--savepoint-dir", f"file://{savepoints}"]
    assert main(["clean", *savepoint_options, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [(row["job"], row["kind"]) for row in printed["found"]] == [
        (query, "file"),
        (query, "directory"),
    ]
    assert printed["within_grace"] == 1
    assert main(["clean", directory, *savepoint_options, "--job", "unknown", "--yes"]) == 1
    assert f"{query}, clean, job, other" in capsys.readouterr().err
    assert main(["clean", directory, *savepoint_options, "--job", query, "--yes"]) == 0
    assert not unfinished.parent.exists()
    assert young.exists()
    assert finished.exists()
    assert main(["clean"]) == 2
    assert "--savepoint-dir" in capsys.readouterr().err


def test_files_deleted_before_an_interruption_are_listed(
    directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_leftover(tmp_path / "clean" / "shared" / RANDOM)

    def is_interrupted(directory: str, job: str, **settings: Any) -> SweepReport:
        if job == "job":
            raise KeyboardInterrupt
        return sweep(directory, job, **settings)

    with mock.patch.object(clean, "sweep", is_interrupted):
        assert main(["clean", directory, "--yes", "--json"]) == 130
    streams = capsys.readouterr()
    assert len(json.loads(streams.out)["found"]) == 1
    assert "interrupted; run the command again" in streams.err


def test_an_empty_directory_and_a_bad_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["clean", f"file://{tmp_path}/nothing"]) == 1
    assert main(["clean", str(tmp_path)]) == 2
    complete(f"file://{tmp_path}", "job")
    assert main(["clean", f"file://{tmp_path}", "--savepoint-dir", "savepoints"]) == 2
    assert "file:///" in capsys.readouterr().err


def test_unfinished_uploads_are_aborted(
    memory_bucket: MemoryBucket,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    directory = f"s3://{memory_bucket.name}/data"
    use_s3(settings_of(memory_bucket.server), memory_bucket.name)
    complete(directory, "job")
    for key in (f"data/job/chk-3/01234567-{RANDOM}", "data/job/chk-3/foreign-file"):
        memory_bucket.client.create_multipart_upload(Bucket=memory_bucket.name, Key=key)
    memory_bucket.age(2 * 86_400)
    settings = tmp_path / "job.conf"
    options = options_for(memory_bucket)
    settings.write_text("\n".join(option.removeprefix("--conf=") for option in options))
    command = ["clean", directory, "--properties-file", str(settings), "--json"]
    assert main(command) == 0
    [upload] = json.loads(capsys.readouterr().out)["found"]
    assert upload.pop("modified")
    assert upload == {
        "job": "job",
        "kind": "upload",
        "uri": f"{directory}/job/chk-3/01234567-{RANDOM}",
        "size_bytes": None,
    }
    assert len(memory_bucket.uploads()) == 2
    assert main([*command, "--yes"]) == 0
    assert [key for key, _ in memory_bucket.uploads()] == ["data/job/chk-3/foreign-file"]
    assert main(command) == 1
