"""`_metadata` in all versions, and the files that it leads to."""

import uuid
from pathlib import Path

import pytest
from contracts.flink_kinds import LONG, NO_NAMESPACE, each, i4, i8, utf
from contracts.flink_savepoints import (
    Subtask,
    canonical_group,
    channel,
    entry_key,
    file,
    incremental,
    inline,
    key_groups,
    keyed_description,
    keyed_info,
    keyed_stream,
    list_states,
    metadata,
    operator_handle,
    relative,
    segment,
)

from holdfast import flink
from holdfast.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    InvalidRequestError,
    UnreadableStateError,
    UnsupportedFormatError,
)

VERSIONS = range(2, 8)
DESCRIPTION = keyed_description(LONG.snapshot, [keyed_info("v", "VALUE", LONG.snapshot)])
GROUP = canonical_group({0: [(entry_key(0, LONG, 3, NO_NAMESPACE, None), i8(4))]})
ROW = {"key_group": 0, "key": 3, "value": 4}
STREAM = DESCRIPTION + GROUP


def keyed_handle(stream: bytes, kind: int = 12) -> bytes:
    return key_groups(kind, 0, [len(DESCRIPTION), 0], stream)


def write(directory: Path, content: bytes) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "_metadata").write_bytes(content)
    return directory


def value_of(savepoint: flink.FlinkSavepoint) -> object:
    return savepoint.read_state("job", "v").to_pylist()


@pytest.mark.parametrize("version", VERSIONS)
def test_metadata_of_every_version_is_read(version: int, tmp_path: Path) -> None:
    subtask = Subtask(
        operator=list_states({"l": (LONG, [1, 2])}), keyed=keyed_handle(inline(STREAM))
    )
    master = i4(0xC96B1696 - (1 << 32)) + i4(3) + b"abc"
    properties = b"\xac\xed\0\5" if version == 4 else b""
    operators = {"job": {0: subtask, 1: Subtask(operator=list_states({"l": (LONG, [3])}))}}
    content = metadata(operators, version=version, masters=[master], properties=properties)
    savepoint = flink.open_savepoint(write(tmp_path, content), uids=["job"])
    assert (savepoint.metadata_version, savepoint.checkpoint_id) == (version, 7)
    [row] = savepoint.operators().to_pylist()
    assert row == {
        "operator": "job",
        "id": flink.operator_id("job"),
        "uid": "job",
        "name": "name of job" if version >= 5 else None,
        "parallelism": 2,
        "max_parallelism": 128,
        "subtasks": 2,
        "in_flight_bytes": 0,
    }
    assert savepoint.read_state("job", "l").to_pylist() == [
        {"subtask": 0, "value": 1},
        {"subtask": 0, "value": 2},
        {"subtask": 1, "value": 3},
    ]
    assert value_of(savepoint) == [ROW]
    assert [row["state"] for row in savepoint.states().to_pylist()] == ["l", "v"]


def test_an_operator_is_named_by_uid_id_or_name(tmp_path: Path) -> None:
    content = metadata({"job": {0: Subtask(keyed=keyed_handle(inline(STREAM)))}, "other": {}})
    savepoint = flink.open_savepoint(write(tmp_path, content))
    for name in ("job", flink.operator_id("job"), "name of job"):
        assert savepoint.read_state(name, "v").to_pylist() == [ROW]
    with pytest.raises(InvalidRequestError, match="unknown operator"):
        savepoint.read_state("unknown", "v")
    with pytest.raises(InvalidRequestError, match="it has v"):
        savepoint.read_state("job", "w")
    assert savepoint.states("other").num_rows == 0


@pytest.mark.parametrize(
    ("uid", "id"),
    [
        ("numbers", "ca88eee0095684d687a1b6495617f957"),
        ("my-uid", "8409efe6adc6d20787611f16017c808f"),
        ("", "0" * 32),
    ],
)
def test_the_id_of_an_operator_is_made_of_its_uid(uid: str, id: str) -> None:
    assert flink.operator_id(uid) == id


@pytest.mark.parametrize("kind", [3, 7, 12])
def test_every_handle_of_key_groups_is_read(kind: int, tmp_path: Path) -> None:
    content = metadata({"job": {0: Subtask(keyed=keyed_handle(inline(STREAM), kind))}})
    assert value_of(flink.open_savepoint(write(tmp_path, content))) == [ROW]


def test_streams_are_found_wherever_they_are(tmp_path: Path) -> None:
    checkpoint = tmp_path / "chk-1"
    (tmp_path / "shared").write_bytes(b"....." + STREAM + b"...")
    (tmp_path / "whole").write_bytes(STREAM)
    size = len(STREAM)
    for stream in (
        relative("next", size),
        file(f"file:{tmp_path}/whole", size),  # with one slash, as Flink writes it
        segment(f"file://{tmp_path}/shared", 5, size),
    ):
        directory = write(checkpoint, metadata({"job": {0: Subtask(keyed=keyed_handle(stream))}}))
        (checkpoint / "next").write_bytes(STREAM)
        assert value_of(flink.open_savepoint(directory)) == [ROW]
        assert value_of(flink.open_savepoint(f"file://{directory}/_metadata")) == [ROW]


def test_moved_files_are_found_at_given_place(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(STREAM)
    stream = file("hdfs://nn:8020/flink/job/files/state", len(STREAM))
    directory = write(tmp_path, metadata({"job": {0: Subtask(keyed=keyed_handle(stream))}}))
    with pytest.raises(InvalidRequestError, match=r"another store.*--moved"):
        flink.open_savepoint(directory).states()
    moved = {"hdfs://nn:8020/flink/job/files": f"file://{tmp_path}"}
    assert value_of(flink.open_savepoint(directory, moved=moved)) == [ROW]


@pytest.mark.parametrize("uri", ["file:{}/secret", "file:///{}/job/shared/../../secret"])
def test_file_outside_of_the_job_is_read_only_if_specified(uri: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(STREAM)
    (tmp_path / "job").mkdir()
    stream = file(uri.format(tmp_path), len(STREAM))
    directory = write(
        tmp_path / "job/chk-7", metadata({"job": {0: Subtask(keyed=keyed_handle(stream))}})
    )
    with pytest.raises(InvalidRequestError, match=r"where no checkpoint of Flink.*--moved"):
        flink.open_savepoint(directory).states()
    moved = {f"file://{tmp_path}": f"file://{tmp_path}"}
    assert value_of(flink.open_savepoint(directory, moved=moved)) == [ROW]


@pytest.mark.parametrize("job", ["hdfs://nn:8020/flink/5f2d", "file:/no/such/5f2d"])
@pytest.mark.parametrize(
    ("place", "metadata_in", "kept_in"),
    [
        ("shared/a/state", "chk-7", "shared/a"),
        ("chk-7/state", "chk-7", "chk-7"),
        ("chk-7/state", "copy", "copy"),
        ("taskowned/state", "copy", "copy/taskowned"),
    ],
)
def test_job_moved_with_all_files_is_read(
    job: str, place: str, metadata_in: str, kept_in: str, tmp_path: Path
) -> None:
    (tmp_path / kept_in).mkdir(parents=True)
    (tmp_path / kept_in / "state").write_bytes(STREAM)
    stream = file(f"{job}/{place}", len(STREAM))
    content = metadata({"job": {0: Subtask(keyed=keyed_handle(stream))}})
    assert value_of(flink.open_savepoint(write(tmp_path / metadata_in, content))) == [ROW]


@pytest.mark.parametrize("name", ["../state", "a/b", "..", "", "/etc/passwd"])
def test_a_relative_name_leads_nowhere_else(name: str, tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(STREAM)
    content = metadata({"job": {0: Subtask(keyed=keyed_handle(relative(name, len(STREAM))))}})
    [row] = flink.open_savepoint(write(tmp_path / "savepoint", content)).states().to_pylist()
    assert "name outside of it" in row["failure"]


def test_missing_file_is_reported_and_other_states_are_read(tmp_path: Path) -> None:
    subtask = Subtask(
        operator=list_states({"l": (LONG, [1])}),
        keyed=keyed_handle(relative("gone", len(STREAM))),
    )
    savepoint = flink.open_savepoint(write(tmp_path, metadata({"job": {0: subtask}})))
    states = {row["state"]: row["failure"] for row in savepoint.states().to_pylist()}
    assert states["l"] is None
    assert "missing" in states[None]
    assert savepoint.read_state("job", "l").num_rows == 1
    with pytest.raises(InvalidRequestError, match="missing"):
        savepoint.read_state("job", "v")


def test_a_state_is_not_read_in_part_unless_one_asks_for_a_subtask(tmp_path: Path) -> None:
    subtasks = {
        0: Subtask(operator=list_states({"l": (LONG, [1])}), keyed=keyed_handle(inline(STREAM))),
        1: Subtask(keyed=keyed_handle(relative("gone", len(STREAM)))),
    }
    savepoint = flink.open_savepoint(write(tmp_path, metadata({"job": subtasks})))
    with pytest.raises(UnreadableStateError, match=r"incomplete.*subtask 1.*missing"):
        value_of(savepoint)
    with pytest.raises(UnreadableStateError, match="incomplete"):
        savepoint.read_state("job", "v", as_bytes=True)
    assert savepoint.read_state("job", "v", subtask=0).to_pylist() == [ROW]
    assert savepoint.read_state("job", "l").num_rows == 1
    failures = {row["state"]: row["failure"] for row in savepoint.states().to_pylist()}
    assert failures["l"] is None
    assert "missing" in failures["v"]
    with pytest.raises(UnreadableStateError, match="missing"):
        savepoint.timers("job")
    assert "missing" in failures[None]


def test_short_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(STREAM[:-1])
    content = metadata({"job": {0: Subtask(keyed=keyed_handle(relative("state", len(STREAM))))}})
    [row] = flink.open_savepoint(write(tmp_path, content)).states().to_pylist()
    assert f"has {len(STREAM) - 1} bytes instead of the {len(STREAM)}" in row["failure"]


def test_a_changelog_is_read_if_nothing_has_changed_since(tmp_path: Path) -> None:
    head = i4(0) + i4(2) + i8(0) + i4(1) + keyed_handle(inline(STREAM))
    change = b"\x09" + i4(0) + i4(2) + i8(0) + i8(1) + i4(1) + i4(0) + i4(2) + b"xy" + utf("id")
    tail = i8(1) + i8(1) + utf("id")
    unchanged = b"\x0e" + head + i4(0) + tail
    changed = b"\x0e" + head + i4(1) + change + tail
    content = metadata({"job": {0: Subtask(keyed=unchanged)}})
    assert value_of(flink.open_savepoint(write(tmp_path, content))) == [ROW]
    content = metadata({"job": {0: Subtask(keyed=changed)}, "other": {}})
    [row] = flink.open_savepoint(write(tmp_path, content)).states().to_pylist()
    assert "canonical savepoint" in row["failure"]


def test_changes_of_a_changelog_in_files_are_passed_over(tmp_path: Path) -> None:
    changes = [i8(0) + inline(b"xy"), i8(5) + file("file:/gone", 9)]
    change = b"\x0d" + i4(0) + i4(2) + each(changes) + i8(0) + i8(0) + utf("id") + utf("filesystem")
    head = i4(0) + i4(2) + i8(0) + i4(1) + keyed_handle(inline(STREAM))
    handle = b"\x0e" + head + i4(1) + change + i8(1) + i8(1) + utf("id")
    subtask = Subtask(operator=list_states({"l": (LONG, [1])}), keyed=handle)
    savepoint = flink.open_savepoint(write(tmp_path, metadata({"job": {0: subtask}, "other": {}})))
    assert savepoint.operators().num_rows == 2
    assert savepoint.read_state("job", "l").num_rows == 1


def test_operator_state_in_merged_files_is_read(tmp_path: Path) -> None:
    whole = list_states({"l": (LONG, [1, 2])})
    data = whole[whole.rindex(i4(6) + b"\0") :]
    (tmp_path / "merged").write_bytes(b"...." + data)
    stream = whole[: -len(inline(data))][1:]
    directories = utf("file:/flink/taskowned") + utf("file:/flink/shared")
    merged = segment(f"file:{tmp_path}/merged", 4, len(data))
    subtasks = {
        0: Subtask(operator=b"\x11" + stream + directories + b"\0" + merged),
        1: Subtask(operator=b"\x11" + i4(0) + directories + b"\1\x10"),
    }
    savepoint = flink.open_savepoint(write(tmp_path, metadata({"job": subtasks})))
    assert savepoint.read_state("job", "l").column("value").to_pylist() == [1, 2]
    assert savepoint.states().num_rows == 1


@pytest.mark.parametrize("version", [3, 6])
def test_rows_in_flight_are_warned_of(version: int, tmp_path: Path) -> None:
    subtask = Subtask(channels=[channel(40, version=version), channel(2, version=version)])
    savepoint = flink.open_savepoint(
        write(tmp_path, metadata({"job": {0: subtask}}, version=version))
    )
    assert savepoint.operators().column("in_flight_bytes").to_pylist() == [42]
    [warning] = savepoint.warnings()
    assert "42 bytes of rows in flight" in warning


def test_a_native_savepoint_without_timers_is_warned_of(tmp_path: Path) -> None:
    handle = incremental(0, 2, inline(DESCRIPTION), {})
    savepoint = flink.open_savepoint(write(tmp_path, metadata({"job": {0: Subtask(keyed=handle)}})))
    assert savepoint.read_state("job", "v").num_rows == 0
    [warning] = savepoint.warnings()
    assert "take a canonical one" in warning


def test_invalid_metadata_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError):
        flink.open_savepoint(tmp_path)
    with pytest.raises(UnsupportedFormatError, match="Holdfast's own"):
        flink.open_savepoint(write(tmp_path, b"holdfast"))
    with pytest.raises(UnsupportedFormatError, match="version 9"):
        flink.open_savepoint(write(tmp_path, metadata({}, version=9)))
    with pytest.raises(UnsupportedFormatError, match="of type 99"):
        flink.open_savepoint(write(tmp_path, metadata({"job": {0: Subtask(keyed=b"\x63")}})))
    with pytest.raises(CheckpointCorruptedError):
        flink.open_savepoint(write(tmp_path, metadata({"job": {0: Subtask()}})[:-1]))


def test_state_of_unknown_version_is_reported(tmp_path: Path) -> None:
    subtask = Subtask(
        operator=operator_handle(i4(3), {"l": (0, [b"x"])}),
        keyed=keyed_stream(i4(5), [GROUP, b""]),
    )
    savepoint = flink.open_savepoint(write(tmp_path, metadata({"job": {0: subtask}})))
    failures = savepoint.states().column("failure").to_pylist()
    assert [text.count("stored in version") for text in failures] == [1, 1]


def test_states_with_equal_name_are_selected_by_kind(tmp_path: Path) -> None:
    subtask = Subtask(operator=list_states({"v": (LONG, [1])}), keyed=keyed_handle(inline(STREAM)))
    savepoint = flink.open_savepoint(write(tmp_path, metadata({"job": {0: subtask}})))
    with pytest.raises(InvalidRequestError, match="keyed value"):
        savepoint.read_state("job", "v")
    assert savepoint.read_state("job", "v", kind="keyed value").to_pylist() == [ROW]
    assert savepoint.read_state("job", "v", kind="list").num_rows == 1


def test_a_savepoint_is_read_from_any_store(memory_directory: str) -> None:
    from holdfast.locations.adapters import file_system_for

    directory = f"{memory_directory}/{uuid.uuid4().hex}"
    file_system = file_system_for(directory)
    file_system.prepare_directory(directory)
    content = metadata({"job": {0: Subtask(keyed=keyed_handle(relative("state", len(STREAM))))}})
    for name, data in (("_metadata", content), ("state", STREAM)):
        stream = file_system.create(f"{directory}/{name}")
        stream.write(data)
        stream.commit()
    assert value_of(flink.open_savepoint(directory)) == [ROW]


def test_subtasks_with_unreadable_state_are_reported(tmp_path: Path) -> None:
    from contracts.flink_kinds import snapshot

    description = keyed_description(
        LONG.snapshot,
        [keyed_info("v", "VALUE", LONG.snapshot, snapshot("com.acme.Namespace", 1))],
    )
    subtask = Subtask(keyed=keyed_stream(description, [GROUP, b""]))
    savepoint = flink.open_savepoint(write(tmp_path, metadata({"job": {0: subtask}})))
    [row] = savepoint.states().to_pylist()
    assert "com.acme.Namespace" in row["failure"]
    with pytest.raises(UnreadableStateError, match=r"com.acme.Namespace"):
        savepoint.read_state("job", "v")
