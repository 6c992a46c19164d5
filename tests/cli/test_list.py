"""`holdfast list`."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jobs.stopped_query import remove, replace
from jobs.stores import Store, s3_options, write_checkpoint
from servers.s3 import S3Bucket

from holdfast.cli.command_line import main
from holdfast.locations import find_checkpoints
from holdfast.spark.settings import Stores
from holdfast.testing import Faults, ManualClock


def list_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """Run the command, and return its JSON."""
    assert main(["list", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_ages_are_measured_by_the_clock_of_the_command(
    memory_directory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = write_checkpoint(memory_directory, 2)
    clock = ManualClock()
    assert checkpoint.metadata.created_ms == clock.now_ms()
    clock.advance(3 * 3600)
    assert main(["list", memory_directory], clock=clock) == 0
    assert " 3 h " in capsys.readouterr().out
    assert main(["show", f"{memory_directory}/job/chk-2"], clock=clock) == 0
    assert "UTC, 3 h ago" in capsys.readouterr().out


def test_json_has_new_and_referenced_bytes_of_checkpoints(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write_checkpoint(store.directory, 2)
    second = write_checkpoint(store.directory, 10, elements=1000, before=first)
    savepoint = write_checkpoint(f"{store.directory}/kept", 10, savepoint=True)
    rows = list_json(capsys, store.directory, *store.options)
    referenced = first.metadata.operators["visits"].subtasks[1].managed_operator[0].size
    assert rows[1] == {
        "kind": "checkpoint",
        "job": "job",
        "checkpoint": 10,
        "pointer": f"{store.directory}/job/chk-10",
        "batch": 9,
        "query_name": "",
        "completed": "2023-11-14T22:13:20+00:00",
        "completed_ms": 1_700_000_000_000,
        "duration_ms": 12.5,
        "epoch": 1,
        "writer": "holdfast tests",
        "rows_in": 1001,
        "rows_late": 0,
        "rows_out": 1003,
        "operators": {"visits": 2},
        "new_bytes": second.metadata.state_bytes - referenced + second.metadata_bytes,
        "referenced_bytes": referenced,
        "total_bytes": second.metadata.state_bytes + second.metadata_bytes,
        "state_bytes": second.metadata.state_bytes,
        "metadata_bytes": second.metadata_bytes,
        "claimed_by": None,
        "has_claimed": [],
    }
    assert [(row["kind"], row["pointer"], row["referenced_bytes"]) for row in rows] == [
        ("checkpoint", f"{store.directory}/job/chk-2", 0),
        ("checkpoint", f"{store.directory}/job/chk-10", referenced),
        ("savepoint", savepoint.location.external_pointer, 0),
    ]


def test_spread_files_count_as_new_bytes(
    memory_bucket: S3Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    options = s3_options(memory_bucket.server)
    spread = f"s3://{memory_bucket.name}/checkpoints/_entropy_"
    Stores.parse(dict(pair.split("=", 1) for pair in options[1::2]), spread).use()
    first = write_checkpoint(spread, 1)
    second = write_checkpoint(spread, 2, before=first)
    assert any("/." in key for key in memory_bucket.keys("checkpoints/"))
    referenced = first.metadata.operators["visits"].subtasks[1].managed_operator[0].size
    rows = list_json(capsys, spread, *options)
    assert [(row["checkpoint"], row["referenced_bytes"]) for row in rows] == [
        (1, 0),
        (2, referenced),
    ]
    assert list_json(capsys, f"s3://{memory_bucket.name}/checkpoints", *options) == rows
    assert main(["verify", spread, *options]) == 0
    assert rows[1]["total_bytes"] == second.metadata.state_bytes + second.metadata_bytes


def test_any_directory_on_the_way_down_will_do(tmp_path: Path) -> None:
    root = f"file://{tmp_path}"
    write_checkpoint(f"{root}/checkpoints", 1)
    savepoint = write_checkpoint(f"{root}/savepoints", 1, savepoint=True)
    pointer = savepoint.location.external_pointer
    chk = f"{root}/checkpoints/job/chk-1"
    pointers = {
        directory: [checkpoint.pointer for checkpoint in find_checkpoints(directory)]
        for directory in (root, f"{root}/checkpoints", f"{root}/checkpoints/job", chk, pointer)
    }
    assert pointers == {
        root: [chk, pointer],
        f"{root}/checkpoints": [chk],
        f"{root}/checkpoints/job": [chk],
        chk: [chk],
        pointer: [pointer],
    }


def test_a_table_has_a_title_and_a_line_for_each_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = f"file://{tmp_path}"
    for number in (2, 10):
        write_checkpoint(directory, number)
    write_checkpoint(directory, 1, job="other", parallelism=3)
    assert main(["list", directory]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines if line and not line.startswith("job")] == [
        *("name", "chk-2", "chk-10"),
        *("name", "chk-1"),
    ]
    assert [line for line in lines if line.startswith("job")] == [
        f"job job (visits) in {directory}/job",
        f"job other (visits) in {directory}/other",
    ]
    assert lines[2].startswith("2023-11-14 22:13  ")


def test_a_job_of_changing_parallelism_is_one_table_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = f"file://{tmp_path}"
    for number, parallelism in ((1, 2), (2, 3), (3, 2), (10, 1)):
        write_checkpoint(directory, number, parallelism=parallelism, query_name="visits of users")
    assert main(["list", directory]) == 0
    title, head, *lines = capsys.readouterr().out.splitlines()
    assert title == f"job job of query 'visits of users' (visits) in {directory}/job"
    at = head.split().index("parallelism") + 1  # times are two words
    assert [line.split()[-1] for line in lines] == ["chk-1", "chk-2", "chk-3", "chk-10"]
    assert [re.split(r"  +", line)[at - 1] for line in lines] == ["2", "3", "2", "1"]


def test_job_picks_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = f"file://{tmp_path}"
    write_checkpoint(directory, 1)
    other = write_checkpoint(directory, 1, job="other")
    replace(f"{directory}/job/chk-1/_metadata", "damaged")
    rows = list_json(capsys, directory, "--job", "other")
    assert [row["pointer"] for row in rows] == [other.location.external_pointer]
    assert main(["list", directory, "--job", "none"]) == 1
    assert "of job none" in capsys.readouterr().err


def test_an_empty_directory_is_status_1(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", store.directory, "--json", *store.options]) == 1
    streams = capsys.readouterr()
    assert json.loads(streams.out) == []
    assert store.directory in streams.err


def test_a_damaged_checkpoint_is_status_3_and_the_others_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = f"file://{tmp_path}"
    for number in (1, 2, 3):
        write_checkpoint(directory, number)
    for number in (1, 2):
        replace(f"{directory}/job/chk-{number}/_metadata", "damaged")
    assert main(["list", directory, "--json"]) == 3
    streams = capsys.readouterr()
    assert [row["checkpoint"] for row in json.loads(streams.out)] == [3]
    assert "chk-1/_metadata" in streams.err
    assert "chk-2/_metadata" in streams.err


def test_whatever_is_in_place_of_a_checkpoint_is_status_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = f"file://{tmp_path}"
    write_checkpoint(directory, 1)
    (tmp_path / "job/chk-2/_metadata").mkdir(parents=True)
    assert main(["list", directory, "--json"]) == 3
    streams = capsys.readouterr()
    assert [row["checkpoint"] for row in json.loads(streams.out)] == [1]
    assert "chk-2/_metadata" in streams.err


def test_a_checkpoint_deleted_during_the_listing_is_left_out(faults: Faults) -> None:
    for number in (1, 2):
        write_checkpoint(faults.directory, number)
    gone = f"{faults.directory}/job/chk-1"
    faults.before(
        "open",
        lambda: remove(f"{gone}/_metadata".replace(faults.directory, faults.inner_directory)),
    )
    assert [checkpoint.pointer for checkpoint in find_checkpoints(faults.directory)] == [
        f"{faults.directory}/job/chk-2"
    ]


def test_a_deleted_directory_has_no_checkpoints(tmp_path: Path) -> None:
    assert find_checkpoints(f"file://{tmp_path}/none") == []
