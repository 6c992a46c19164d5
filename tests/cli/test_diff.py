"""`holdfast diff`."""

import json
from pathlib import Path

import pytest
from contracts.elements import Order
from jobs.kept import Kept, write_checkpoint
from jobs.stopped import put

from holdfast.cli import main
from holdfast.locations import copy_checkpoint, files_of
from holdfast.spark import take_savepoint


def test_json_has_all_that_differs(kept: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    first = write_checkpoint(kept.directory, 1)
    second = write_checkpoint(kept.directory, 2, elements=9, before=first)
    a, b = (one.location.external_pointer for one in (first, second))
    assert main(["diff", a, b, "--json", *kept.options]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found.pop("first")["pointer"], found.pop("second")["pointer"]) == (a, b)
    old, shared = files_of(first.metadata.streams())
    new, _ = files_of(second.metadata.streams())
    seen = [
        sum(
            one.managed_operator[0].states["seen"].length
            for one in checkpoint.metadata.operators["visits"].subtasks.values()
        )
        for checkpoint in (first, second)
    ]
    assert found == {
        "is_same": False,
        "progress": {
            "batch": [0, 1],
            "offsets": [
                'v1\n{"batchTimestampMs":1,"conf":{"a":"b"}}\n{"logOffset":1}',
                'v1\n{"batchTimestampMs":2,"conf":{"a":"b"}}\n{"logOffset":2}',
            ],
        },
        "operators": [
            {
                "uid": "visits",
                "state": "seen",
                "what": "changed",
                "changes": {"elements": [4, 10], "state_bytes": seen},
            }
        ],
        "files": {
            "only_first": [{"uri": old.uri, "bytes": old.size}],
            "only_second": [{"uri": new.uri, "bytes": new.size}],
            "shared": [{"uri": shared.uri, "bytes": shared.size}],
            "copies": [],
            "inline_differs": False,
        },
    }


def test_text_says_what_became_of_operators_and_states(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = f"file://{tmp_path}"
    write_checkpoint(directory, 1)
    write_checkpoint(directory, 2, parallelism=3, element_type=Order)
    assert main(["diff", f"{directory}/job/chk-1", f"{directory}/job/chk-2"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "batch: 0 -> 1" in lines
    assert 'offsets of source 0: {"logOffset":1} -> {"logOffset":2}' in lines
    assert "operator visits: parallelism: 2 -> 3" in lines
    assert "state seen of visits: type: int64 -> contracts.elements.Order" in lines
    assert "state seen of visits: serializers: arrow -> messagepack" in lines


def test_a_checkpoint_is_like_itself_and_like_its_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    completed = write_checkpoint(f"file://{tmp_path}/checkpoints", 1)
    copy = copy_checkpoint(completed, f"file://{tmp_path}/copies").location.external_pointer
    pointer = completed.location.external_pointer
    assert main(["diff", pointer, pointer]) == 0
    assert "alike" in capsys.readouterr().out
    assert main(["diff", pointer, copy, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["is_same"]
    assert len(found["files"]["copies"]) == 2


@pytest.mark.usefixtures("as_without_spark")
def test_a_savepoint_is_like_the_checkpoint_that_it_was_taken_of(
    stopped: str, directory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pointer = take_savepoint(stopped, f"{directory}/savepoints")
    assert main(["diff", pointer, f"{directory}/checkpoints", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["files"]["copies"]) == 2
    put(f"{stopped}/state/0/0/4.snapshot", "whole" * 2000)
    another = take_savepoint(stopped, f"{directory}/more")
    assert main(["diff", pointer, another, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["progress"], found["operators"]) == ({}, [])
    assert [one["bytes"] for one in found["files"]["only_second"]] == [10000]


def test_nothing_there_is_status_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pointer = write_checkpoint(f"file://{tmp_path}", 1).location.external_pointer
    assert main(["diff", pointer, f"file://{tmp_path}/none"]) == 3
    assert capsys.readouterr().out == ""
