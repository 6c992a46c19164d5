"""`holdfast flink`."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from contracts.flink_kinds import (
    LONG,
    NO_NAMESPACE,
    STRING,
    TIMER,
    composite,
    i8,
    list_of,
    snapshot,
)
from contracts.flink_savepoints import (
    Subtask,
    canonical_group,
    channel,
    entry_key,
    file,
    info,
    keyed_description,
    keyed_info,
    keyed_stream,
    list_states,
    metadata,
)

from holdfast import flink
from holdfast.cli.command_line import main

ID = flink.operator_id("job")


@pytest.fixture
def savepoint(tmp_path: Path) -> str:
    """A savepoint of two operators, one of them with a state that can't be read."""
    timers = composite(TIMER, LONG.snapshot, NO_NAMESPACE.snapshot)
    infos = [
        keyed_info("v", "LIST", list_of(LONG).snapshot),
        info("_timer_state/event_user-timers", 3, serializers={"VALUE_SERIALIZER": timers}),
        keyed_info("w", "VALUE", LONG.snapshot, snapshot("com.acme.Namespace", 1)),
    ]
    group = canonical_group(
        {
            0: [(entry_key(0, LONG, 3, NO_NAMESPACE, None), i8(1) + b"," + i8(2))],
            1: [(b"\0\x80" + i8(5)[1:] + i8(3) + b"\0", b"")],
        }
    )
    subtask = Subtask(
        operator=list_states({"texts": (STRING, ["a", "\x1b[31m"])}),
        keyed=keyed_stream(keyed_description(LONG.snapshot, infos), [group, b""]),
        channels=[channel(9, version=4)],
    )
    (tmp_path / "_metadata").write_bytes(metadata({"job": {0: subtask}, "other": {}}, version=4))
    return f"file://{tmp_path}"


def lines(capsys: pytest.CaptureFixture[str]) -> list[Any]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_show_prints_operators_and_states_as_json(
    savepoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["flink", "show", savepoint, "--uid", "job", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    operator, other = shown["operators"]
    states = {state["state"]: state for state in operator.pop("states")}
    assert operator == {
        "operator": "job",
        "id": ID,
        "uid": "job",
        "name": None,
        "parallelism": 1,
        "max_parallelism": 128,
        "subtasks": 1,
        "in_flight_bytes": 9,
    }
    assert (other["uid"], other["states"]) == (None, [])
    assert (shown["checkpoint"], shown["metadata_version"]) == (7, 4)
    assert "9 bytes of rows in flight" in shown["warnings"][0]
    assert list(states) == ["texts", "v", "_timer_state/event_user-timers", "w"]
    assert states["v"] == {
        "state": "v",
        "kind": "keyed list",
        "key": "int64",
        "namespace": None,
        "value": "list<item: int64>",
        "has_ttl": False,
        "has_known_hash": True,
        "failure": None,
    }
    assert "com.acme.Namespace" in states["w"]["failure"]


def test_show_prints_operators_and_states_as_text(
    savepoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["flink", "show", f"{savepoint}/_metadata"]) == 0
    streams = capsys.readouterr()
    assert f"operator {ID}: 1 subtask, at most 128" in streams.out
    assert f"without state: {flink.operator_id('other')}" in streams.out
    assert "w can't be read: " in streams.err
    assert "rows in flight" in streams.err


def test_cat_prints_rows(savepoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["flink", "cat", savepoint, "job", "v", "--json"]) == 0
    assert lines(capsys) == [{"key_group": 0, "key": 3, "value": [1, 2]}]
    assert main(["flink", "cat", savepoint, ID, "v", "--explode", "--json", "--limit", "1"]) == 0
    assert lines(capsys) == [{"key_group": 0, "key": 3, "value": 1}]
    assert main(["flink", "cat", savepoint, "job", "v", "--bytes", "--json"]) == 0
    data = base64.b64encode(i8(1) + b"," + i8(2)).decode()
    assert lines(capsys) == [{"key_group": 0, "key": 3, "value": data}]
    assert main(["flink", "cat", savepoint, "job", "--timers", "--json"]) == 0
    [timer] = lines(capsys)
    assert (timer["domain"], timer["key"], timer["timestamp"]) == (
        "event",
        3,
        5,
    )
    assert main(["flink", "cat", savepoint, "job", "--json"]) == 0
    assert len(lines(capsys)) == 4


def test_cat_prints_a_table_without_control_characters(
    savepoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["flink", "cat", savepoint, "job", "texts", "--limit", "1"]) == 0
    streams = capsys.readouterr()
    assert streams.out.split() == ["subtask", "value", "0", "a"]
    assert "only the first 1 rows" in streams.err
    assert main(["flink", "cat", savepoint, "job", "texts", "--subtask", "0"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    assert main(["flink", "cat", savepoint, "job", "texts", "--subtask", "5"]) == 0
    assert "it is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["job", "w"], 3, "com.acme.Namespace"),
        (["job", "nothing"], 2, "it has texts, v"),
        (["unknown", "v"], 2, "unknown operator"),
        (["job", "v", "--timers"], 2, "no state"),
        (["--moved", "s3://here"], 2, "OLD=NEW"),
    ],
)
def test_impossible_requests_are_reported(
    words: list[str], status: int, message: str, savepoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["flink", "cat", savepoint, *words]) == status
    assert message in capsys.readouterr().err


def test_a_directory_without_a_savepoint_is_status_1(
    local_directory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("show", "cat"):
        assert main(["flink", command, local_directory]) == 1
        assert "no savepoint or checkpoint of Flink" in capsys.readouterr().err


def test_moved_files_are_read_from_their_new_prefix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    description = keyed_description(LONG.snapshot, [keyed_info("v", "VALUE", LONG.snapshot)])
    handle = b"\x0c" + bytes(8) + file("s3://old/flink/state", len(description)) + b"\0\0"
    (tmp_path / "state").write_bytes(description)
    (tmp_path / "_metadata").write_bytes(metadata({"job": {0: Subtask(keyed=handle)}}))
    pointer = f"file://{tmp_path}"
    assert main(["flink", "cat", pointer, "job", "v"]) == 2
    assert "another store" in capsys.readouterr().err
    assert main(["flink", "cat", pointer, "job", "v", "--moved", f"s3://old/flink={pointer}"]) == 0


def test_import_lists_kept_and_lost_state_before_it_writes(
    savepoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = f"file://{tmp_path}/imported"
    command = ["flink", "import", savepoint, "--uid", "job", "--map", "job/texts=moved/texts"]
    assert main([*command, target]) == 3  # rows are in flight
    assert "9 bytes of rows are in flight" in capsys.readouterr().err
    assert main([*command, "--allow-loss", "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert not out
    assert "job/texts as moved/texts: list, string" in err
    assert "read moved/texts: 2 rows" in err
    assert "nothing was written" in err
    assert not (tmp_path / "imported").exists()
    assert main([*command, "--allow-loss", target]) == 0
    out, err = capsys.readouterr()
    assert err.index("lost:") < err.index("spark.holdfast.savepoint.path")
    pointer = out.strip()
    assert main(["cat", pointer, "moved", "texts", "--json"]) == 0
    assert [row["value"] for row in lines(capsys)] == ["a", "\x1b[31m"]


def test_import_gives_one_object_in_json(
    savepoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["flink", "import", savepoint, "--uid", "job", "--map", "job/texts=moved/texts"]
    assert main([*command, "--allow-loss", "--dry-run", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["pointer"] is None
    assert shown["states"] == [{"operator": "moved", "state": "texts", "rows": 2}]
    assert shown["starting_offsets"] == {}
    assert any("watermarks" in lost for lost in shown["lost"])


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--dry-run", "--map", "job/texts"],
        ["--dry-run", "--map", "texts=job/texts"],
        ["--dry-run", "--ttl", "job/texts=soon"],
        ["--dry-run", "--key", "=customer"],
    ],
)
def test_import_refuses_empty_options(savepoint: str, options: list[str]) -> None:
    assert main(["flink", "import", savepoint, *options]) == 2


def test_export_lists_kept_and_lost_state_before_it_writes(
    savepoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--map", "job/texts=moved/texts", "--map", "job/v=moved/v"]
    target = [f"file://{tmp_path}/imported"]
    assert (
        main(["flink", "import", savepoint, "--uid", "job", *places, "--allow-loss", *target]) == 3
    )
    capsys.readouterr()
    places = places[:2]
    assert (
        main(["flink", "import", savepoint, "--uid", "job", *places, "--allow-loss", *target]) == 0
    )
    ours = capsys.readouterr().out.strip()
    command = ["flink", "export", ours, "--map", "moved=job"]
    assert main(command) == 2
    assert main([*command, "--dry-run", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["kept"] == ["moved/texts as job: list, string"]
    assert "nothing was written" in err
    assert main([*command, f"file://{tmp_path}/back"]) == 0
    back = capsys.readouterr().out.strip()
    assert main(["flink", "cat", back, "job", "texts", "--json"]) == 0
    assert [row["value"] for row in lines(capsys)] == ["a", "\x1b[31m"]
    assert main(["flink", "export", f"file://{tmp_path}/nothing", "--dry-run"]) == 1
    assert main(["flink", "export", ours, "--dry-run", "--map", "moved"]) == 2
