"""`holdfast savepoint`, `restore` and `rollback`, of stopped queries."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from cli.stores import options_for
from jobs.stopped_query import QUERY, UID, all_files, remove, write_query, write_stopped
from servers.s3 import S3Bucket, settings_of

from holdfast import restore_savepoint, take_savepoint
from holdfast.cli.command_line import main
from holdfast.locations import use_s3
from holdfast.spark.savepoints import take
from holdfast.spark.savepoints.change_notes import Change

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return f"file://{tmp_path}"


@pytest.fixture
def stopped_query(directory: str, as_without_spark: None) -> str:
    """The checkpointLocation of a query with an operator, four batches done."""
    return write_stopped(directory)


@pytest.fixture
def plain(directory: str, as_without_spark: None) -> str:
    """The checkpointLocation of a query without operators, three batches done."""
    return write_query(f"{directory}/plain", batches=3)


def savepoint(location: str, directory: str, capsys: Captured) -> str:
    assert main(["savepoint", location, f"{directory}/savepoints"]) == 0
    return capsys.readouterr().out.strip()


# savepoint


def test_savepoint_prints_only_the_pointer(
    stopped_query: str, directory: str, capsys: Captured
) -> None:
    assert main(["savepoint", stopped_query, f"{directory}/savepoints"]) == 0
    streams = capsys.readouterr()
    [pointer] = streams.out.splitlines()
    assert pointer.startswith(f"{directory}/savepoints/savepoint-{QUERY}-")
    assert f"query {QUERY} after batch 3" in streams.err
    restored = restore_savepoint(pointer, f"{directory}/fork", checkpoint_dir=f"{directory}/forked")
    assert restored.batch_id == 3


def test_savepoint_prints_json(stopped_query: str, directory: str, capsys: Captured) -> None:
    conf = f"--conf=spark.holdfast.savepoint.dir={directory}/by-default"
    assert main(["savepoint", stopped_query, conf, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed.pop("pointer").startswith(f"{directory}/by-default/savepoint-")
    assert printed == {"query_id": QUERY, "batch": 3, "job": QUERY, "operators": {UID: 2}}


def test_a_dry_run_of_savepoint_writes_nothing(
    stopped_query: str, directory: str, capsys: Captured
) -> None:
    before = all_files(directory)
    command = ["savepoint", stopped_query, f"{directory}/savepoints", "--dry-run"]
    assert main([*command, "--json"]) == 0
    streams = capsys.readouterr()
    printed = json.loads(streams.out)
    assert printed.pop("bytes") > 0
    assert printed == {
        "pointer": None,
        "query_id": QUERY,
        "batch": 3,
        "job": QUERY,
        "operators": {UID: 2},
    }
    assert "nothing was written" in streams.err
    assert main(command) == 0
    assert capsys.readouterr().out == ""
    assert all_files(directory) == before
    assert main(["savepoint", f"{directory}/nothing", f"{directory}/savepoints", "--dry-run"]) == 2


def test_savepoint_of_a_query_without_operators(
    plain: str, directory: str, capsys: Captured
) -> None:
    assert main(["savepoint", plain, f"{directory}/savepoints", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["batch"], printed["job"], printed["operators"]) == (2, None, {})


def test_savepoint_copies_only_files_not_in_its_base(
    stopped_query: str, directory: str, capsys: Captured
) -> None:
    base = savepoint(stopped_query, directory, capsys)
    target = f"{directory}/second"
    assert main(["savepoint", stopped_query, target, "--base", base]) == 0
    assert [path.rpartition("/")[2] for path in all_files(target)] == ["_metadata"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["{0}/nothing", "{0}/savepoints"], (2, "no query has its checkpointLocation here")),
        (["{0}/original"], (2, "no savepoint directory")),
        (["{0}/original", "relative"], (2, "no scheme")),
        (["{0}/original", "{0}/savepoints", "--base", "{0}/nothing"], (3, "nothing")),
        (["{0}/original", "{0}/savepoints", "--base", "{0}/checkpoints"], (3, "checkpoints")),
        (["{0}/original", "{0}/original/metadata/in"], (2, "original/metadata")),
        (["{0}/original", "{0}/savepoints", "--conf", "spark.holdfast.s4=1"], (2, "s4")),
        (["{0}/original", "{0}/savepoints", "--no-operators", "--job", "j"], (2, "operators")),
    ],
)
def test_a_failed_savepoint_prints_one_line(
    stopped_query: str,
    directory: str,
    capsys: Captured,
    words: list[str],
    expected: tuple[int, str],
) -> None:
    status, message = expected
    assert main(["savepoint", *(word.format(directory) for word in words)]) == status
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.count("\n") == 1
    assert message in streams.err
    assert not all_files(f"{directory}/savepoints")


def test_an_interrupted_savepoint_leaves_none(
    stopped_query: str, directory: str, capsys: Captured
) -> None:
    with mock.patch.object(take, "complete_checkpoint", side_effect=KeyboardInterrupt):
        assert main(["savepoint", stopped_query, f"{directory}/savepoints"]) == 130
    streams = capsys.readouterr()
    assert streams.out == ""
    assert "holdfast clean" in streams.err
    assert not all_files(f"{directory}/savepoints")


# restore


def test_restore_prints_the_settings_as_lines(
    stopped_query: str, directory: str, tmp_path: Path, capsys: Captured
) -> None:
    pointer = savepoint(stopped_query, directory, capsys)
    job = ["--checkpoint-dir", f"{directory}/forked", "--job", "fork"]
    assert main(["restore", pointer, f"{directory}/fork", *job]) == 0
    streams = capsys.readouterr()
    assert streams.out.splitlines() == [
        f"spark.holdfast.checkpoint.dir {directory}/forked",
        "spark.holdfast.job.id fork",
    ]
    assert f"checkpointLocation {directory}/fork" in streams.err
    # They can be given to a command as they are.
    (tmp_path / "fork.conf").write_text(streams.out)
    settings = ["--properties-file", str(tmp_path / "fork.conf")]
    assert main(["savepoint", f"{directory}/fork", f"{directory}/savepoints", *settings]) == 0


def test_restore_prints_json(stopped_query: str, directory: str, capsys: Captured) -> None:
    pointer = savepoint(stopped_query, directory, capsys)
    fork = f"{directory}/fork"
    conf = f"--conf=spark.holdfast.checkpoint.dir={directory}/forked"
    assert main(["restore", pointer, fork, conf, "--keep-query-id", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "dry_run": False,
        "query_id": QUERY,
        "batch": 3,
        "job": QUERY,
        "checkpoint_location": fork,
        "settings": {
            "spark.holdfast.checkpoint.dir": f"{directory}/forked",
            "spark.holdfast.job.id": QUERY,
        },
        "restored_before": False,
    }
    assert json.loads((Path(fork.removeprefix("file://")) / "metadata").read_text()) == {
        "id": QUERY
    }


def test_a_dry_run_of_restore_writes_nothing(
    stopped_query: str, directory: str, capsys: Captured
) -> None:
    pointer = savepoint(stopped_query, directory, capsys)
    before = all_files(directory)
    fork = f"{directory}/fork"
    command = ["restore", pointer, fork, "--checkpoint-dir", f"{directory}/forked"]
    assert main([*command, "--dry-run", "--json"]) == 0
    streams = capsys.readouterr()
    printed = json.loads(streams.out)
    assert printed.pop("bytes") > 0
    assert printed == {
        "dry_run": True,
        "batch": 3,
        "checkpoint_location": fork,
        "restored_before": False,
    }
    assert "nothing was written" in streams.err
    assert all_files(directory) == before
    assert main([*command, "--paths", "file:///no-input", "file:///new", "--dry-run"]) == 2
    assert (
        "no input file of the savepoint begins with ['file:///no-input']" in capsys.readouterr().err
    )
    assert main(["restore", pointer, stopped_query, *command[3:], "--dry-run"]) == 2
    assert "nothing was restored" in capsys.readouterr().err
    assert main(command) == 0
    capsys.readouterr()
    assert main([*command, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["restored_before"] is True


def test_restore_rewrites_paths_of_moved_input(
    plain: str, directory: str, capsys: Captured
) -> None:
    pointer = savepoint(plain, directory, capsys)
    moved = ["--paths", "file:///in", "s3a://bucket/day=1"]
    assert main(["restore", pointer, f"{directory}/fork", *moved]) == 0
    assert '"s3a://bucket/day=1/2"' in all_files(f"{directory}/fork")["sources/0/2"]
    assert main(["restore", pointer, f"{directory}/twice", *moved, *moved]) == 2
    assert "twice" in capsys.readouterr().err
    assert not all_files(f"{directory}/twice")


def test_restore_refuses_invalid_arguments(
    stopped_query: str, directory: str, capsys: Captured
) -> None:
    pointer = savepoint(stopped_query, directory, capsys)
    checkpoint = f"{directory}/checkpoints/{QUERY}/chk-4"
    fork = f"{directory}/fork"
    for words, (status, message) in [
        ([f"{directory}/nothing", fork], (3, "nothing")),
        ([checkpoint, fork], (2, "not a savepoint of a query")),
        ([pointer, fork], (2, "spark.holdfast.checkpoint.dir")),
        ([pointer, stopped_query, "--checkpoint-dir", f"{directory}/forked"], (2, "is not empty")),
    ]:
        assert main(["restore", *words]) == status
        streams = capsys.readouterr()
        assert (streams.out, streams.err.count("\n")) == ("", 1)
        assert message in streams.err
        assert not all_files(fork)


def test_an_interrupted_restore_is_finished_by_the_same_command(
    stopped_query: str, directory: str, capsys: Captured
) -> None:
    pointer = savepoint(stopped_query, directory, capsys)
    command = ["restore", pointer, f"{directory}/fork", "--checkpoint-dir", f"{directory}/forked"]
    with mock.patch.object(Change, "finish", side_effect=KeyboardInterrupt):
        assert main(command) == 130
    streams = capsys.readouterr()
    assert streams.out == ""
    assert "run the command again to finish it" in streams.err
    assert "unfinished" in all_files(f"{directory}/fork")["metadata"]
    assert main(command) == 0
    assert "unfinished" not in all_files(f"{directory}/fork")["metadata"]


def test_a_restore_killed_before_printing_prints_when_repeated(
    stopped_query: str, directory: str, capsys: Captured
) -> None:
    pointer = savepoint(stopped_query, directory, capsys)
    command = ["restore", pointer, f"{directory}/fork", "--checkpoint-dir", f"{directory}/forked"]
    code = (
        "import os, signal, sys\n"
        "from holdfast.cli import main\n"
        "from holdfast.cli import queries\n"
        "queries.print_line = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "main(sys.argv[1:])\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", code, *command], capture_output=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert killed.stdout == b""
    settings = {
        "spark.holdfast.checkpoint.dir": f"{directory}/forked",
        "spark.holdfast.job.id": json.loads(all_files(f"{directory}/fork")["metadata"])["id"],
    }
    assert main(command) == 0
    streams = capsys.readouterr()
    assert streams.out.splitlines() == [f"{key} {value}" for key, value in settings.items()]
    assert "was done before" in streams.err
    assert main([*command, "--json"]) == 0
    restored = json.loads(capsys.readouterr().out)
    assert (restored["settings"], restored["restored_before"]) == (settings, True)


# rollback


def test_rollback_lists_the_checkpoints_of_operators(stopped_query: str, capsys: Captured) -> None:
    before = all_files(stopped_query)
    assert main(["rollback", stopped_query, "--json"]) == 0
    points = json.loads(capsys.readouterr().out)
    assert points[1] == {"checkpoint": 2, "batch": 1, "begun": "2023-11-14T22:14:20+00:00"}
    assert [point["checkpoint"] for point in points] == [1, 2, 3, 4]
    assert main(["rollback", stopped_query]) == 0
    streams = capsys.readouterr()
    assert streams.out.splitlines()[2].split() == ["2", "1", "2023-11-14T22:14:20+00:00"]
    assert "--checkpoint" in streams.err
    assert all_files(stopped_query) == before


def test_rollback_lists_only_complete_targets(
    plain: str, stopped_query: str, directory: str, capsys: Captured
) -> None:
    remove(f"{plain}/state/0/1/1.delta")
    assert main(["rollback", plain]) == 1
    assert "no checkpoint or batch to roll back to" in capsys.readouterr().err
    damaged = Path(directory.removeprefix("file://")) / "checkpoints" / QUERY / "chk-3/_metadata"
    damaged.write_bytes(b"")
    remove(f"{directory}/checkpoints/{QUERY}/chk-1/_metadata")
    assert main(["rollback", stopped_query, "--json"]) == 0
    assert [point["checkpoint"] for point in json.loads(capsys.readouterr().out)] == [2, 4]


def test_rollback_without_yes_prints_files_to_delete(
    stopped_query: str, directory: str, capsys: Captured
) -> None:
    before = all_files(directory)
    assert main(["rollback", stopped_query, "--checkpoint", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "dry_run": True,
        "query_id": QUERY,
        "batch": 2,
        "newest_batch": 3,
        "checkpoints": [f"{directory}/checkpoints/{QUERY}/chk-4"],
        "files": [
            f"{stopped_query}/{path}"
            for path in (
                "commits/3",
                "offsets/3",
                "sources/0/3",
                "state/0/0/4.delta",
                "state/0/1/4.delta",
            )
        ],
    }
    assert main(["rollback", stopped_query, "--checkpoint", "3", "--dry-run"]) == 0
    streams = capsys.readouterr()
    assert len(streams.out.splitlines()) == 6
    assert "what does the sink do with batches 3 to 3" in streams.err
    assert "application_id()" in streams.err
    assert "--yes" in streams.err
    assert all_files(directory) == before


def test_rollback_goes_back_twice_but_not_forth(
    stopped_query: str, directory: str, capsys: Captured
) -> None:
    for checkpoint in (3, 2):
        assert main(["rollback", stopped_query, "--checkpoint", str(checkpoint)]) == 0
        going = set(capsys.readouterr().out.splitlines())
        before = all_files(stopped_query).keys()
        assert main(["rollback", stopped_query, "--checkpoint", str(checkpoint), "--yes"]) == 0
        streams = capsys.readouterr()
        assert streams.out == ""
        assert f"resumes with batch {checkpoint}" in streams.err
        gone = {f"{stopped_query}/{path}" for path in before - all_files(stopped_query).keys()}
        assert gone == {uri for uri in going if uri.startswith(stopped_query)}
    assert main(["rollback", stopped_query, "--checkpoint", "3", "--yes"]) == 3
    assert "there are: 1, 2" in capsys.readouterr().err


def test_rollback_of_a_query_without_operators_is_by_batch(plain: str, capsys: Captured) -> None:
    assert main(["rollback", plain, "--json"]) == 0
    assert [
        (point["checkpoint"], point["batch"]) for point in json.loads(capsys.readouterr().out)
    ] == [
        (None, 0),
        (None, 1),
        (None, 2),
    ]
    assert main(["rollback", plain, "--batch", "1", "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"dry_run": False, "batch": 1}
    assert "offsets/2" not in all_files(plain)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--yes"], (2, "--checkpoint or --batch")),
        (["--batch", "1", "--yes"], (2, "name one of its checkpoints")),
        (["--checkpoint", "9", "--yes"], (3, "there are: 1, 2, 3, 4")),
        (["--checkpoint", "9"], (3, "there are: 1, 2, 3, 4")),
        (["--checkpoint", "elsewhere", "--yes"], (2, "no scheme")),
        (["--no-operators", "--batch", "9", "--yes"], (3, "don't have batch 9")),
    ],
)
def test_an_impossible_rollback_changes_nothing(
    stopped_query: str,
    directory: str,
    capsys: Captured,
    words: list[str],
    expected: tuple[int, str],
) -> None:
    status, message = expected
    before = all_files(directory)
    assert main(["rollback", stopped_query, *words]) == status
    streams = capsys.readouterr()
    assert (streams.out, streams.err.count("\n")) == ("", 1)
    assert message in streams.err
    assert all_files(directory) == before


def test_an_interrupted_roll_back_is_finished_by_the_same_command(
    stopped_query: str, directory: str, capsys: Captured
) -> None:
    command = ["rollback", stopped_query, "--checkpoint", "2", "--yes"]
    with mock.patch.object(Change, "finish", side_effect=KeyboardInterrupt):
        assert main(command) == 130
    assert "run the command again to finish it" in capsys.readouterr().err
    assert main(["rollback", stopped_query, "--json"]) == 0
    assert [point["checkpoint"] for point in json.loads(capsys.readouterr().out)] == [2]
    assert main(["rollback", stopped_query, "--checkpoint", "1", "--yes"]) == 2
    assert main(["savepoint", stopped_query, f"{directory}/savepoints"]) == 3
    assert "repeat it first" in capsys.readouterr().err
    assert main(command) == 0
    assert json.loads(all_files(stopped_query)["metadata"]) == {"id": QUERY}
    # One that ended right before the note of it went is not in the way of anything.
    with mock.patch.object(Change, "forget", side_effect=KeyboardInterrupt):
        assert main(["rollback", stopped_query, "--checkpoint", "1", "--yes"]) == 130
    before = all_files(stopped_query)
    assert main(["rollback", stopped_query, "--checkpoint", "1"]) == 0
    assert all_files(stopped_query) == before
    assert main(["rollback", stopped_query, "--checkpoint", "1", "--yes"]) == 0
    assert not any("unfinished" in path for path in all_files(stopped_query))


def test_rollback_is_refused_during_an_unfinished_restore(
    plain: str, directory: str, capsys: Captured
) -> None:
    pointer = take_savepoint(plain, f"{directory}/savepoints")
    fork = f"{directory}/fork"
    with mock.patch.object(Change, "finish", side_effect=KeyboardInterrupt):
        assert main(["restore", pointer, fork]) == 130
    for words in ([], ["--batch", "1"], ["--batch", "1", "--yes"]):
        assert main(["rollback", fork, *words]) == 2
    assert "a restore was begun here" in capsys.readouterr().err


# Stores


def test_a_bucket_is_reached_only_by_the_settings(
    memory_bucket: S3Bucket, as_without_spark: None, capsys: Captured
) -> None:
    use_s3(settings_of(memory_bucket.server), memory_bucket.name)
    directory = f"s3://{memory_bucket.name}/dir"
    location = write_stopped(directory)
    assert (
        main(["savepoint", location, f"{directory}/savepoints", *options_for(memory_bucket)]) == 0
    )
    pointer = capsys.readouterr().out.strip()
    options = [*options_for(memory_bucket), "--checkpoint-dir", f"{directory}/forked"]
    assert main(["restore", pointer, f"{directory}/fork", *options]) == 0
    for words in ([], ["--checkpoint", "2"], ["--checkpoint", "2", "--yes"]):
        assert main(["rollback", location, *words, *options_for(memory_bucket)]) == 0
    assert "dir/original/offsets/2" not in memory_bucket.keys("dir/original/offsets/")
    assert "dir/fork/offsets/3" in memory_bucket.keys("dir/fork/offsets/")


@pytest.mark.parametrize("command", ["savepoint", "restore", "rollback"])
def test_without_pyspark_commands_name_the_package_to_install(
    command: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("holdfast.spark")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    words = ["file:///a", "file:///b"] if command == "restore" else ["file:///a"]
    assert main([command, *words]) == 2
    assert "pip install 'holdfast[spark]'" in capsys.readouterr().err


def test_lines_of_restore_parse_to_the_requested_settings(
    stopped_query: str, directory: str, tmp_path: Path, capsys: Captured
) -> None:
    pointer = savepoint(stopped_query, directory, capsys)
    state = f"{directory}/env=prod/back\\slash"
    assert main(["restore", pointer, f"{directory}/fork", "--checkpoint-dir", state]) == 0
    (tmp_path / "fork.conf").write_text(capsys.readouterr().out)
    settings = [f"--properties-file={tmp_path}/fork.conf", "--job=second", "--json"]
    assert main(["restore", pointer, f"{directory}/second", *settings]) == 0
    restored = json.loads(capsys.readouterr().out)
    assert restored["settings"]["spark.holdfast.checkpoint.dir"] == state
