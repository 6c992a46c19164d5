"""Refusals of savepoints and rollbacks, and damage that they name or survive, without Spark."""

import io
import json
import uuid
import zipfile
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import msgspec
import pytest
from contracts.errors import of_kind
from jobs.stopped_query import (
    QUERY,
    UID,
    add_batches,
    all_files,
    put,
    remove,
    replace,
    text_of,
    write_query,
)
from servers.s3 import S3Bucket, settings_of

from holdfast import restore_savepoint, roll_back, take_savepoint
from holdfast.errors import CheckpointCorruptedError, CheckpointNotFoundError, InvalidRequestError
from holdfast.locations import latest_checkpoint, load_checkpoint, use_s3
from holdfast.locations.adapters import FileStateHandle, file_system_for
from holdfast.locations.metadata import encode_metadata
from holdfast.locations.storages import resolve_pointer
from holdfast.spark import sessions
from holdfast.spark.checkpoint_location import (
    LoggedBatch,
    Moves,
    batch_at,
    newest_committed,
    rewrite_paths,
    tree,
)
from holdfast.spark.savepoints import restore as restoring
from holdfast.spark.savepoints import rollback, take
from holdfast.spark.savepoints.change_notes import Change
from holdfast.spark_progress import SPARK_FILES, SparkFiles, spark_files_of

pytestmark = pytest.mark.usefixtures("as_without_spark")


def files_of(pointer: str) -> SparkFiles:
    """Return the files of Spark in a savepoint."""
    return spark_files_of(load_checkpoint(resolve_pointer(pointer)).metadata, pointer)


# Files that lead elsewhere


@pytest.mark.parametrize(
    "path",
    [
        "../victim",
        "offsets/../../victim",
        "/victim",
        "offsets//3",
        "offsets/./3",
        "",
        ".",
        "..",
        "a/",
    ],
)
def test_savepoint_file_with_a_path_outside_is_corruption(
    savepoint: str, directory: str, path: str
) -> None:
    first, *others = files_of(savepoint).files
    change_spark_files(savepoint, files=(msgspec.structs.replace(first, path=path), *others))
    with pytest.raises(CheckpointCorruptedError, match="not a path below a checkpointLocation"):
        restore_savepoint(savepoint, f"{directory}/fork")
    assert not all_files(f"{directory}/fork")


def test_savepoint_file_stored_outside_is_corruption(savepoint: str, directory: str) -> None:
    first, *others = files_of(savepoint).files
    for uri in (f"{directory}/secret", f"{directory}/x/../secret", "../secret"):
        stray = msgspec.structs.replace(first, handle=FileStateHandle(uri, 8))
        change_spark_files(savepoint, files=(stray, *others))
        with pytest.raises(
            CheckpointCorruptedError, match=r"outside of its directory|names a file"
        ):
            restore_savepoint(savepoint, f"{directory}/fork")


def change_spark_files(pointer: str, **changes: Any) -> None:
    """Replace the files of Spark in a savepoint, with valid checksums, as an attacker could."""
    metadata = load_checkpoint(resolve_pointer(pointer)).metadata
    decoded = msgspec.msgpack.decode(metadata.coordinator_states[SPARK_FILES], type=SparkFiles)
    changed = msgspec.structs.replace(decoded, **changes)
    states = metadata.coordinator_states | {SPARK_FILES: msgspec.msgpack.encode(changed)}
    metadata = msgspec.structs.replace(metadata, coordinator_states=states)
    remove(f"{pointer}/_metadata")
    content = encode_metadata(metadata, pointer)
    put(f"{pointer}/_metadata", content.decode(errors="surrogateescape"))


# State in the memory of executors


def test_rollback_while_the_application_lives_is_refused(
    plain_query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "is_application_alive", lambda: True)
    before = all_files(plain_query)
    with pytest.raises(InvalidRequestError, match="End the application"):
        roll_back(plain_query, batch_id=1)
    assert all_files(plain_query) == before


def test_query_without_spark_state_is_rolled_back_under_spark(
    stopped_query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "is_application_alive", lambda: True)
    file_system_for(stopped_query).delete_tree(f"{stopped_query}/state")
    assert roll_back(stopped_query, checkpoint=2) == 1


def test_rollback_deletes_batches_finished_before_its_claim(stopped_query: str) -> None:
    def add_batch(*arguments: Any) -> LoggedBatch:
        batch = batch_at(*arguments)
        add_batches(stopped_query, [4])
        return batch

    with mock.patch.object(rollback, "batch_at", add_batch):
        roll_back(stopped_query, checkpoint=2)
    left = all_files(stopped_query)
    assert {path for path in left if path.endswith(("/4", "/5.delta"))} == set()


# Operators that a query no longer has


def test_outdated_operators_are_refused(stopped_query: str, directory: str) -> None:
    add_batches(stopped_query, [4, 5])
    with pytest.raises(InvalidRequestError, match=r"batch 5.*after batch 3.*operators=False"):
        take_savepoint(stopped_query, f"{directory}/savepoints")
    pointer = take_savepoint(stopped_query, f"{directory}/savepoints", operators=False)
    restored = restore_savepoint(pointer, f"{directory}/fork")
    assert (restored.batch_id, restored.job_id) == (5, None)
    with pytest.raises(InvalidRequestError, match="operators=False"):
        roll_back(stopped_query, batch_id=4)
    assert roll_back(stopped_query, batch_id=4, operators=False) == 4


def test_named_job_needs_checkpoints(stopped_query: str, directory: str) -> None:
    with pytest.raises(CheckpointNotFoundError, match="no completed checkpoint in job other"):
        take_savepoint(stopped_query, f"{directory}/savepoints", job_id="other")
    remove(f"{stopped_query}/holdfast.json")
    with pytest.raises(CheckpointNotFoundError, match="job other"):
        take_savepoint(
            stopped_query,
            f"{directory}/savepoints",
            checkpoint_dir=f"{directory}/checkpoints",
            job_id="other",
        )
    with pytest.raises(InvalidRequestError, match="not both"):
        take_savepoint(stopped_query, f"{directory}/savepoints", job_id="other", operators=False)


def test_savepoint_has_operators_of_an_unfinished_first_batch(
    stopped_query: str, directory: str
) -> None:
    text = text_of(f"{stopped_query}/holdfast.json")
    remove(f"{stopped_query}/holdfast.json")

    def first_batch_ends(location: str) -> int | None:
        if "holdfast.json" not in all_files(stopped_query):
            put(f"{stopped_query}/holdfast.json", text)
        return newest_committed(location)

    with mock.patch.object(take, "newest_committed", first_batch_ends):
        pointer = take_savepoint(stopped_query, f"{directory}/savepoints")
    assert load_checkpoint(resolve_pointer(pointer)).metadata.operators.keys() == {UID}


# Unknown and missing files


@pytest.mark.parametrize("path", ["_schemas/0", "state/0/0/v1.parquet", "state/0/odd/x"])
def test_unknown_files_are_refused_by_name(plain_query: str, directory: str, path: str) -> None:
    put(f"{plain_query}/{path}", "of something else")
    put(f"{plain_query}/state_$folder$", "")
    before = all_files(plain_query)
    with pytest.raises(InvalidRequestError, match=path):
        take_savepoint(plain_query, f"{directory}/savepoints")
    with pytest.raises(InvalidRequestError, match=path):
        roll_back(plain_query, batch_id=1)
    assert all_files(plain_query) == before


@pytest.mark.parametrize(
    ("is_removed", "names"),
    [
        (lambda path: path.startswith("state/0/1/") and path.endswith(".delta"), "partition 1"),
        (lambda path: path.startswith("state/0/0/"), "partition 0"),
        (lambda path: path.startswith("state/1/1/right"), "'right' of partition 1"),
    ],
)
def test_missing_state_of_a_partition_is_named(
    plain_query: str, directory: str, is_removed: Callable[[str], bool], names: str
) -> None:
    for partition in range(2):
        for store in ("left", "right"):
            put(f"{plain_query}/state/1/{partition}/{store}/4.snapshot", "whole")
    take_savepoint(plain_query, f"{directory}/savepoints")
    remove(*(f"{plain_query}/{path}" for path in all_files(plain_query) if is_removed(path)))
    with pytest.raises(CheckpointNotFoundError, match=names):
        take_savepoint(plain_query, f"{directory}/savepoints")


def test_state_in_one_partition_is_complete(plain_query: str, directory: str) -> None:
    put(f"{plain_query}/state/1/0/4.snapshot", "whole")
    assert take_savepoint(plain_query, f"{directory}/savepoints")


# State of format 2, whose files have an id of the attempt that wrote them


def _write_format_2(location: str, *, batches: int, purged: int) -> str:
    """Write and return a query with finished batches and changelogs; the logs of its first batches are purged."""
    put(f"{location}/metadata", json.dumps({"id": QUERY}))
    for batch in range(batches):
        for partition in range(2):
            name = f"{batch + 1}_{_id(partition, batch + 1)}"
            put(f"{location}/state/0/{partition}/{name}.changelog", "x")
        if batch >= purged:
            ids = {"0": [[_id(partition, batch + 1)] for partition in range(2)]}
            pinned = json.dumps({"conf": {"spark.sql.shuffle.partitions": "2"}})
            put(f"{location}/offsets/{batch}", f"v1\n{pinned}\n5")
            put(f"{location}/commits/{batch}", f"v2\n{json.dumps({'stateUniqueIds': ids})}")
    return location


def _id(partition: int, version: int) -> str:
    return str(uuid.UUID(int=100 * partition + version))


def _zip_of(metadata: dict[str, Any]) -> str:
    """Return a snapshot of RocksDB with this description of its files."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr("metadata", f"v1\n{json.dumps(metadata)}")
    return archive.getvalue().decode(errors="surrogateescape")


def _versions(pointer: str, partition: int) -> list[int]:
    store = f"state/0/{partition}/"
    names = {file.path.removeprefix(store) for file in files_of(pointer).files}
    return sorted({int(name.partition("_")[0]) for name in names if name[0].isdigit()})


def test_snapshot_of_an_unknown_attempt_does_not_end_a_chain(directory: str) -> None:
    location = _write_format_2(f"{directory}/plain", batches=6, purged=4)
    put(f"{location}/state/0/0/3_{uuid.uuid4()}.zip", _zip_of({}))
    put(f"{location}/state/0/1/3_{_id(1, 3)}.zip", _zip_of({}))
    pointer = take_savepoint(location, f"{directory}/savepoints")
    assert _versions(pointer, 0) == [1, 2, 3, 4, 5, 6]
    assert _versions(pointer, 1) == [3, 4, 5, 6]


def test_files_before_a_committed_snapshot_are_not_needed(directory: str) -> None:
    location = _write_format_2(f"{directory}/plain", batches=6, purged=4)
    stray = f"{location}/state/0/0/3_{uuid.uuid4()}.changelog"
    put(stray, "x")
    put(f"{location}/state/0/0/3_{_id(0, 3)}.zip", _zip_of({}))
    remove(*(f"{location}/state/0/0/{version}_{_id(0, version)}.changelog" for version in (1, 2)))
    pointer = take_savepoint(location, f"{directory}/savepoints")
    assert _versions(pointer, 0) == [3, 4, 5, 6]
    assert stray.removeprefix(f"{location}/") in {file.path for file in files_of(pointer).files}
    remove(stray, f"{location}/state/0/0/3_{_id(0, 3)}.zip")
    with pytest.raises(CheckpointNotFoundError, match="version 2 of a state"):
        take_savepoint(location, f"{directory}/savepoints")


@pytest.mark.parametrize("gone", ["state/0/1/", "state/0/"])
def test_missing_state_in_the_commit_log_is_named(directory: str, gone: str) -> None:
    location = _write_format_2(f"{directory}/plain", batches=2, purged=0)
    remove(*(f"{location}/{path}" for path in all_files(location) if path.startswith(gone)))
    with pytest.raises(CheckpointNotFoundError, match=f"{_id(1, 2)}|{_id(0, 2)}"):
        take_savepoint(location, f"{directory}/savepoints")


# Logs of sources


def test_missing_source_log_is_named(plain_query: str, directory: str) -> None:
    file_system_for(plain_query).delete_tree(f"{plain_query}/sources")
    with pytest.raises(CheckpointNotFoundError, match="the log of source 0"):
        take_savepoint(plain_query, f"{directory}/savepoints")
    with pytest.raises(CheckpointNotFoundError, match="the log of source 0"):
        roll_back(plain_query, batch_id=1)


@pytest.mark.parametrize(
    ("log", "logs"),
    [
        # A source that the plan has twice has a single directory; its two lines are equal.
        (["v1", 1, 1], {"0": 2}),
        (["v1", 1, 1, 3], {"0": 2, "1": 4}),
        (["v1", 1, 1, 3], {"0": 2, "1": 2, "2": 4}),
        (["v1", 3, 1, 3], {"0": 4, "1": 2}),
        (["v1", "-", "-", 3], {"1": 4}),
        (["v1", '{"topic":{"0":7}}', '{"topic":{"0":7}}', 3], {"1": 4}),
        (["v1", '{"logOffset":1,"more":2}'], {}),
        # Version 2 has one line for each source, with its last place in the plan.
        (["v2", "0:1", "1:3"], {"0": 2, "1": 4}),
        (["v2", "1:1", "2:3"], {"0": 2, "1": 4}),
        (["v2", "1:3", "2:1"], {"0": 2, "1": 4}),
        (["v2", "second:3", "first:1"], {"first": 2, "second": 4}),
    ],
)
def test_all_entries_of_source_logs_are_copied(
    directory: str, log: list[str | int], logs: dict[str, int]
) -> None:
    location = write_query(f"{directory}/plain", batches=2)
    file_system_for(location).delete_tree(f"{location}/sources")
    version, *sources = (_line(line) for line in log)
    pinned = json.dumps({"conf": {"spark.sql.shuffle.partitions": "2"}})
    replace(f"{location}/offsets/1", "\n".join([version, pinned, *sources]))
    entries = {
        f"sources/{name}/{number}" for name, count in logs.items() for number in range(count)
    }
    for entry in entries:
        put(f"{location}/{entry}", "v1")
    pointer = take_savepoint(location, f"{directory}/savepoints")
    copied = {file.path for file in files_of(pointer).files}
    assert {path for path in copied if path.startswith("sources/")} == entries


def _line(offset: str | int) -> str:
    """Return a line of the offset log; an offset of a log of files is given by its last entry."""
    name, colon, last = str(offset).rpartition(":")
    return f'{name}{colon}{{"logOffset":{last}}}' if last.isdigit() else str(offset)


def test_missing_log_after_a_repeated_source_is_named(directory: str) -> None:
    location = write_query(f"{directory}/plain", batches=2)
    lines = [_line(offset) for offset in (1, 1, 3)]
    replace(f"{location}/offsets/1", "\n".join(["v1", '{"conf":{}}', *lines]))
    with pytest.raises(CheckpointNotFoundError, match="the log of source 1"):
        take_savepoint(location, f"{directory}/savepoints")


def test_savepoint_during_a_restore_reports_it(plain_query: str, directory: str) -> None:
    def without_metadata(location: str) -> dict[str, int]:
        return {path: size for path, size in tree(location).items() if path != "metadata"}

    with mock.patch.object(take, "tree", without_metadata):
        with pytest.raises(CheckpointNotFoundError, match="restore or a rollback has just begun"):
            take_savepoint(plain_query, f"{directory}/savepoints")
    assert all_files(f"{directory}/savepoints") == {}


def test_first_offsets_of_iceberg_are_copied(plain_query: str, directory: str) -> None:
    put(f"{plain_query}/sources/1/offsets/0", '{"version":1}')
    pointer = take_savepoint(plain_query, f"{directory}/savepoints")
    assert "sources/1/offsets/0" in {file.path for file in files_of(pointer).files}


@pytest.mark.parametrize("offset", ['{"app-logOffsets":{"0":12}}', '{"logOffset":{"0":1}}', "-"])
def test_topic_is_not_taken_for_a_log_of_files(directory: str, offset: str) -> None:
    location = write_query(f"{directory}/plain", batches=1)
    remove(f"{location}/sources/0/0")
    replace(f"{location}/offsets/0", f'v1\n{{"conf":{{}}}}\n{offset}')
    assert take_savepoint(location, f"{directory}/savepoints")


def test_truncated_rocksdb_file_is_refused(directory: str) -> None:
    location = write_query(f"{directory}/plain", batches=1)
    described = {"sstFiles": [{"dfsSstFileName": "1-x.sst", "sizeBytes": 1000}]}
    for partition in range(2):
        store = f"{location}/state/0/{partition}"
        remove(f"{store}/1.delta")
        put(f"{store}/1.zip", _zip_of(described))
        put(f"{store}/SSTs/1-x.sst", "y" * (1000 - partition))
    with pytest.raises(CheckpointCorruptedError, match="999 bytes, but 1000"):
        take_savepoint(location, f"{directory}/savepoints")


# Damage that does not prevent an action


def test_rollback_past_damaged_checkpoints(stopped_query: str, directory: str) -> None:
    for damaged in (3, 4):
        uri = f"{directory}/checkpoints/{QUERY}/chk-{damaged}/_metadata"
        replace(uri, text_of(uri)[:50])
    assert roll_back(stopped_query, checkpoint=2) == 1
    last = latest_checkpoint(f"{directory}/checkpoints", QUERY)
    assert last is not None
    assert last.checkpoint_id == 2


@pytest.mark.parametrize("cut", [False, True])
def test_lost_files_of_a_base_are_copied_again(plain_query: str, directory: str, cut: bool) -> None:  # noqa: FBT001  # a parameter of the test
    paths = ["state/0/_stateSchema/default/0_x", "state/0/1/3.delta"]
    put(f"{plain_query}/{paths[0]}", "schema" * 1000)
    base = take_savepoint(plain_query, f"{directory}/savepoints")
    for file in files_of(base).files:
        if file.path in paths:
            assert isinstance(file.handle, FileStateHandle)
            text = text_of(file.handle.uri)
            remove(file.handle.uri)
            if cut:
                put(file.handle.uri, text[:-1])
    pointer = take_savepoint(plain_query, f"{directory}/savepoints", base=base)
    restored = restore_savepoint(pointer, f"{directory}/fork")
    fork, original = all_files(restored.checkpoint_location), all_files(plain_query)
    assert all(fork[path] == original[path] for path in paths)


def test_missing_file_is_read_twice(plain_query: str, directory: str) -> None:
    remove(f"{plain_query}/state/0/0/3.delta")
    with pytest.raises(CheckpointNotFoundError, match="after 2 attempts"):
        take_savepoint(plain_query, f"{directory}/savepoints")


def test_missing_file_is_not_blamed_on_a_target_with_a_common_prefix(
    plain_query: str, directory: str
) -> None:
    remove(f"{plain_query}/state/0/0/3.delta")
    with pytest.raises(CheckpointNotFoundError, match="after 2 attempts"):
        take_savepoint(plain_query, f"{directory}/pla")  # the query is in directory/plain


def test_savepoint_of_a_query_without_a_batch_is_refused(plain_query: str, directory: str) -> None:
    remove(*(f"{plain_query}/commits/{batch}" for batch in range(4)))
    with pytest.raises(CheckpointNotFoundError, check=of_kind("not-begun")):
        take_savepoint(plain_query, f"{directory}/savepoints")


# Unfinished actions


def test_stale_note_is_forgotten(plain_query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with mock.patch.object(Change, "forget", side_effect=KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            roll_back(plain_query, batch_id=1)
    add_batches(plain_query, range(2, 8))
    assert roll_back(plain_query, batch_id=6) == 6
    assert not any("unfinished" in path for path in all_files(plain_query))


def test_restore_over_an_interrupted_rollback_is_refused(plain_query: str, directory: str) -> None:
    pointer = take_savepoint(plain_query, f"{directory}/savepoints")
    with mock.patch.object(Change, "finish", side_effect=KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            roll_back(plain_query, batch_id=2)
    with pytest.raises(InvalidRequestError, match="rollback was begun") as caught:
        restore_savepoint(pointer, plain_query)
    assert "delete" not in str(caught.value)
    assert roll_back(plain_query, batch_id=2) == 2


def test_restore_is_repeated_only_with_its_arguments(savepoint: str, directory: str) -> None:
    first, second, fork = (f"{directory}/{name}" for name in ("first", "second", "fork"))
    with mock.patch.object(restoring, "write_spark_files", side_effect=KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            restore_savepoint(savepoint, fork, checkpoint_dir=first, job_id="one")
    with pytest.raises(InvalidRequestError, match="job one in"):
        restore_savepoint(savepoint, fork, checkpoint_dir=second, job_id="two")
    restored = restore_savepoint(savepoint, fork, checkpoint_dir=first, job_id="one")
    assert restored.settings["spark.holdfast.job.id"] == restored.job_id == "one"
    assert json.loads(text_of(f"{fork}/holdfast.json"))["checkpoint_dir"] == first


def test_path_without_input_is_refused(plain_query: str, directory: str) -> None:
    pointer = take_savepoint(plain_query, f"{directory}/savepoints")
    fork = f"{directory}/fork"
    with pytest.raises(InvalidRequestError, match="file:///inn"):
        restore_savepoint(pointer, fork, paths={"file:///inn": "s3a://bucket/in"})
    assert all_files(fork) == {}
    restore_savepoint(pointer, fork, paths={"file:///in": "s3a://bucket/in"})
    assert "s3a://bucket/in/3" in text_of(f"{fork}/sources/0/3")


@pytest.mark.parametrize(
    ("location", "old", "new"),
    [
        ("s3://new/spark", "file:///old", "s3a://new/spark"),
        ("fsspec+s3://new/spark", "s3a://old/spark", "s3a://new/spark"),
        ("s3a://new/spark", "s3://old/spark", "s3://new/spark"),
        ("s3://new/spark", "hdfs://old/spark", "s3a://new/spark"),
        ("file:///new", "s3a://old/spark", "file:///new"),
    ],
)
def test_schema_paths_have_a_scheme_of_spark(location: str, old: str, new: str) -> None:
    def text(root: str) -> bytes:
        schemas = f'["{root}/state/0/_stateSchema/default/0_x"]'
        return f'v2\n{{"stateStoreInfo":[{{"stateSchemaFilePaths":{schemas}}}]}}'.encode()

    path = "state/0/_metadata/v2/0"
    changed = rewrite_paths(path, text(old), checkpoint_location=location, moves=Moves({}))
    assert changed == text(new)


# Settings


def test_registered_store_is_used_without_settings(plain_query: str, moto_bucket: S3Bucket) -> None:
    use_s3(settings_of(moto_bucket.server), moto_bucket.name)
    target = f"s3://{moto_bucket.name}/savepoints"
    for configuration in ({}, {"spark.holdfast.savepoint.dir": target}):
        pointer = take_savepoint(plain_query, target, configuration=configuration)
        assert files_of(pointer).files


def test_settings_of_an_unrelated_session_are_not_stored(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = write_query(f"{directory}/plain", batches=1)
    for partition in range(2):
        remove(f"{location}/state/0/{partition}/1.delta")
        put(f"{location}/state/0/{partition}/1_{uuid.uuid4()}.changelog", "x")
    others = {
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "1",
        "spark.holdfast.checkpoint.dir": "gopher://nowhere",
    }
    monkeypatch.setattr("holdfast.spark.sessions.configuration", lambda: others)
    pointer = take_savepoint(location, f"{directory}/savepoints")
    assert files_of(pointer).settings == {
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    }


def test_unknown_setting_is_refused_without_operators(plain_query: str, directory: str) -> None:
    configuration = {"spark.holdfast.s3.endpont": "http://store:9000"}
    pointer = take_savepoint(plain_query, f"{directory}/savepoints")
    for action in (
        partial(take_savepoint, plain_query, f"{directory}/refused"),
        partial(restore_savepoint, pointer, f"{directory}/refused"),
        partial(roll_back, plain_query, batch_id=1),
    ):
        with pytest.raises(InvalidRequestError, match=r"did you mean 'spark\.holdfast\.s3\.endp"):
            action(configuration=configuration)
    assert not all_files(f"{directory}/refused")
