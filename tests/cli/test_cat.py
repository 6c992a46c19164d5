"""`holdfast cat`: states as rows."""

import datetime as dt
import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from contracts.checkpoints import Checkpoint, one_state
from contracts.elements import PYTHON_VALUES, VALUES, Point, broadcast_state, list_state

from holdfast.backends import OperatorStateBackend
from holdfast.cli.command_line import main


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(f"file://{tmp_path}")


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def list_and_map_checkpoint(checkpoint: Checkpoint) -> str:
    """Complete a checkpoint with a list and a map in two subtasks."""

    def fill(backend: OperatorStateBackend, subtask: int) -> None:
        list_state(backend, "points", Point).add_all([Point(subtask), Point(10 + subtask, 1.5)])
        broadcast_state(backend, "rules", (str, int), {"limit": 5})

    checkpoint.add("op", fill, parallelism=2)
    return checkpoint.complete()


def test_without_a_state_all_are_listed(
    checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    pointer = list_and_map_checkpoint(checkpoint)
    assert main(["cat", pointer]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["operator", "state", "kind"]
    assert [row.split()[:5] for row in rows] == [
        ["op", "points", "list", "2", "4"],
        ["op", "rules", "broadcast", "2", "1"],
    ]
    assert main(["cat", pointer, "--json"]) == 0
    assert lines(capsys)[0] | {"bytes": 0} == {
        "operator": "op",
        "state": "points",
        "kind": "list",
        "subtasks": 2,
        "stored_elements": 4,
        "bytes": 0,
        "type": "contracts.elements.Point",
        "arrow_type": "struct<x: int64 not null, y: double not null>",
        "stored_as": "arrow",
    }


def test_elements_are_rows(checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]) -> None:
    pointer = list_and_map_checkpoint(checkpoint)
    assert main(["cat", pointer, "op", "points", "--json"]) == 0
    assert lines(capsys) == [
        {"subtask": 0, "value": {"x": 0, "y": 0.5}},
        {"subtask": 0, "value": {"x": 10, "y": 1.5}},
        {"subtask": 1, "value": {"x": 1, "y": 0.5}},
        {"subtask": 1, "value": {"x": 11, "y": 1.5}},
    ]
    assert main(["cat", pointer, "op", "points", "--subtask", "1", "--limit", "1"]) == 0
    streams = capsys.readouterr()
    assert streams.out.split() == ["subtask", "value", "1", '{"x":', "1,", '"y":', "0.5}"]
    assert "--limit" in streams.err
    assert main(["cat", pointer, "op", "rules", "--subtask", "1", "--json"]) == 0
    assert lines(capsys) == [{"key": "limit", "value": 5}]
    assert main(["cat", pointer, "op", "points", "--subtask", "7"]) == 1
    assert "no state of subtask 7; subtasks with state: 0, 1" in capsys.readouterr().err


def test_options_between_operator_and_state_are_parsed(
    checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    pointer = list_and_map_checkpoint(checkpoint)
    printed = []
    for words in (
        [pointer, "op", "rules", "--json"],
        ["--json", pointer, "op", "rules"],
        [pointer, "--json", "op", "rules"],
        [pointer, "op", "--limit", "9", "rules", "--json"],
    ):
        assert main(["cat", *words]) == 0
        printed.append(lines(capsys))
    assert printed == 4 * [[{"key": "limit", "value": 5}]]


def test_a_wrong_name_is_status_2_with_the_available_names(
    checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    pointer = list_and_map_checkpoint(checkpoint)
    assert main(["cat", pointer, "other"]) == 2
    assert "['op']" in capsys.readouterr().err
    assert main(["cat", pointer, "op", "other"]) == 2
    assert "['points', 'rules']" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["cat", pointer, "--limit", "0"])
    assert "must be an integer >= 1, got '0'" in capsys.readouterr().err


def test_a_checkpoint_without_state_is_status_1(checkpoint: Checkpoint) -> None:
    assert main(["cat", checkpoint.complete()]) == 1
    assert main(["cat", checkpoint.location.external_pointer, "--json"]) == 1


def test_nothing_there_is_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cat", f"file://{tmp_path}"]) == 1
    assert "no completed checkpoint or savepoint here or below" in capsys.readouterr().err


def test_a_checkpoint_location_of_spark_has_no_checkpoints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state/0/_metadata").mkdir(parents=True)
    for pointer in (f"file://{tmp_path}", f"file://{tmp_path}/state/0"):
        assert main(["cat", pointer]) == main(["list", pointer]) == 1
        assert "no completed checkpoint or savepoint here or below" in capsys.readouterr().err


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["table", "JSON"])
def test_an_empty_state_exists(
    checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str], form: tuple[str, ...]
) -> None:
    pointer = one_state(checkpoint, Point, [])
    assert main(["cat", pointer, "op", "s", *form]) == 0
    streams = capsys.readouterr()
    assert streams.out == ""
    assert "empty" in streams.err


def test_a_damaged_state_is_status_3(
    checkpoint: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pointer = list_and_map_checkpoint(checkpoint)
    for file in tmp_path.glob("job/chk-1/*"):
        if file.name != "_metadata":
            file.write_bytes(file.read_bytes()[:-1])
    assert main(["cat", pointer, "op", "points"]) == 3
    assert "bytes" in capsys.readouterr().err


@pytest.mark.parametrize("kind", VALUES | PYTHON_VALUES)
def test_every_type_is_json(
    checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    element_type, values = (VALUES | PYTHON_VALUES)[kind]
    checkpoint.add("op", lambda backend, _: list_state(backend, "s", element_type).add_all(values))
    pointer = checkpoint.complete()
    assert main(["cat", pointer, "op", "s", "--json"]) == 0
    assert len(lines(capsys)) == len(values)
    assert main(["cat", pointer, "op", "s"]) == 0


JSON: list[tuple[pa.DataType, Any, Any]] = [
    (pa.binary(), b"\x00\xff", "AP8="),
    (pa.decimal128(9, 2), Decimal("1.20"), "1.20"),
    (pa.float64(), float("nan"), "NaN"),
    (pa.float64(), float("-inf"), "-Infinity"),
    (pa.date32(), dt.date(2024, 2, 29), "2024-02-29"),
    (pa.timestamp("ns", "Europe/Berlin"), 1, "1970-01-01T00:00:00.000000001Z"),
    (pa.timestamp("ms"), -1, "1969-12-31T23:59:59.999"),
    (pa.timestamp("s"), 2**40, 2**40),
    (pa.time64("ns"), 3_600_000_000_001, "01:00:00.000000001"),
    (pa.duration("us"), -1_500_000, "-PT1.500000S"),
    (pa.map_(pa.string(), pa.binary()), [("a", b"a")], {"a": "YQ=="}),
    (pa.map_(pa.int64(), pa.int64()), [(1, 2)], [[1, 2]]),
    (pa.map_(pa.large_string(), pa.int64()), [("a", 1)], {"a": 1}),
    (pa.map_(pa.string(), pa.int64()), [("a", 1), ("a", 2)], [["a", 1], ["a", 2]]),
    (pa.date32(), 10**8, 10**8),
    (pa.date64(), 10**8 * 86_400_000, 10**8),
    (pa.month_day_nano_interval(), (1, 2, 3), [1, 2, 3]),
]


@pytest.mark.parametrize(("type", "value", "expected"), JSON, ids=str)
def test_values_have_the_documented_form(
    checkpoint: Checkpoint,
    capsys: pytest.CaptureFixture[str],
    type: pa.DataType,
    value: Any,
    expected: Any,
) -> None:
    elements = pa.array([value], type)
    checkpoint.add("op", lambda backend, _: list_state(backend, "s", type).add_all(elements))
    assert main(["cat", checkpoint.complete(), "op", "--json"]) == 0
    assert lines(capsys) == [{"subtask": 0, "value": expected}]


def test_a_missing_uuid_is_null(checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]) -> None:
    ids = pa.array([None, b"a" * 16], pa.binary(16)).cast(pa.uuid())
    elements = pa.StructArray.from_arrays([ids], ["id"])
    checkpoint.add(
        "op", lambda backend, _: list_state(backend, "s", elements.type).add_all(elements)
    )
    assert main(["cat", checkpoint.complete(), "op", "--json"]) == 0
    assert [line["value"]["id"] for line in lines(capsys)] == [None, "YWFhYWFhYWFhYWFhYWFhYQ=="]


def test_fields_with_the_same_name_and_invalid_text_are_printed(
    checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = pa.array([b"\xffa"]).view(pa.string())
    elements = pa.StructArray.from_arrays([pa.array([1]), texts], ["a", "a"])
    checkpoint.add(
        "op", lambda backend, _: list_state(backend, "s", elements.type).add_all(elements)
    )
    assert main(["cat", checkpoint.complete(), "op", "--json"]) == 0
    assert lines(capsys) == [{"subtask": 0, "value": [["a", 1], ["a", "\\xffa"]]}]


def test_elements_of_a_state_do_not_control_the_terminal(
    checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["\x1b[31mred", "two\nlines", "\x9b31m", "\u202egnp", "x" * 1000, "-", "größe"]
    checkpoint.add("op", lambda backend, _: list_state(backend, "s", pa.string()).add_all(texts))
    pointer = checkpoint.complete()
    assert main(["cat", pointer, "op"]) == 0
    _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split(maxsplit=1)[1].rstrip() for row in rows] == [
        r"\x1b[31mred",
        r"two\nlines",
        r"\x9b31m",
        r"\u202egnp",
        "x" * 200 + "…",
        "-",
        "größe",
    ]
    assert main(["cat", pointer, "op", "--json"]) == 0
    out = capsys.readouterr().out
    assert out.isascii()
    assert "\x1b" not in out
    assert [json.loads(line)["value"] for line in out.splitlines()] == texts


def test_it_needs_no_spark(checkpoint: Checkpoint) -> None:
    pointer = list_and_map_checkpoint(checkpoint)
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "holdfast", "cat", pointer, "op", "points"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "pyspark" not in ran.stderr
    assert len(ran.stdout.splitlines()) == 5
