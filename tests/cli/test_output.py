"""Output of commands, with any content of the files that they read."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest
from jobs.stopped_query import remove
from jobs.stores import write_checkpoint

from holdfast.cli.command_line import main
from holdfast.cli.output import print_json, print_line, print_pairs, print_status, print_table
from holdfast.locations import FileSystemCheckpointStorage, complete_checkpoint
from holdfast.locations.handles import files_of
from holdfast.testing import Faults

HOSTILE = "\x1b]0;owned\x07\x1b[31mred\nfake line\x9b2J\u2028\u202e"


@pytest.fixture
def hostile(tmp_path: Path) -> str:
    """The pointer to a savepoint whose metadata steers terminals."""
    directory = f"file://{tmp_path}"
    metadata = write_checkpoint(directory, 1).metadata
    changed = msgspec.structs.replace(
        metadata,
        commit_token=uuid4().hex,
        writer=HOSTILE,
        job_id=HOSTILE,
        operators={HOSTILE: metadata.operators["visits"]},
        coordinator_states=metadata.coordinator_states | {HOSTILE: b""},
    )
    access = FileSystemCheckpointStorage(directory).create_checkpoint_storage("job")
    location = access.initialize_location_for_savepoint(1, directory)
    return complete_checkpoint(location, changed).location.external_pointer


def test_metadata_can_t_steer_the_terminal(
    hostile: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["list", f"file://{tmp_path}"])
    main(["show", hostile])
    main(["cat", hostile])
    main(["diff", f"file://{tmp_path}/job/chk-1", hostile])
    main(["verify", hostile])
    streams = capsys.readouterr()
    for line in (streams.out + streams.err).split("\n"):
        assert line.isprintable()
        assert not line.startswith("fake")
    assert "owned" in streams.out


def test_every_printer_escapes_and_keeps_columns(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[Mapping[str, str]] = [{"a": "1\x1b", "b": "x\n"}, {"a": "22", "b": "ünï [1]"}]
    print_line(HOSTILE)
    print_table(rows)
    print_pairs({"k\x1b": "one\ntwo\x07", "key": "three"})
    print_status(HOSTILE)
    streams = capsys.readouterr()
    assert all(line.isprintable() for line in (streams.out + streams.err).split("\n"))
    lines = streams.out.splitlines()
    assert lines[0].startswith("\\x1b]0;owned\\x07")
    assert lines[3] == "22     ünï [1]"
    assert lines[4:] == ["  k\\x1b  one", "         two\\x07", "  key    three"]


def test_json_is_escaped_for_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    print_json(["ü\x9b"])
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_json(["ü\x9b"])
    piped, seen = capsys.readouterr().out.split("]")[:2]
    assert "ü" in piped
    assert seen.isascii()
    assert json.loads(f"{piped}]") == json.loads(f"{seen}]")


def test_lack_of_memory_is_status_3_and_one_line(
    capsys: pytest.CaptureFixture[str], faults: Faults
) -> None:
    faults.before("list", MemoryError(), "every")
    assert main(["list", faults.directory]) == 3
    errors = capsys.readouterr().err
    assert errors.startswith("holdfast: this machine has too little memory")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    "failure", [RuntimeError("\x1bwhat"), OSError(errno.EIO, "input/output error")]
)
def test_an_internal_error_is_status_3_with_a_traceback(
    capsys: pytest.CaptureFixture[str], faults: Faults, failure: Exception
) -> None:
    faults.before("list", failure, "every")
    assert main(["list", faults.directory]) == 3
    errors = capsys.readouterr().err
    assert errors.startswith("Traceback")
    assert type(failure).__name__ in errors
    assert "\x1b" not in errors


def test_a_closed_output_changes_no_status(tmp_path: Path) -> None:
    directory = f"file://{tmp_path}"
    files = files_of(write_checkpoint(directory, 1, elements=100).metadata.streams())
    remove(*(file.uri for file in files))
    commands = {
        f"list {directory}/nothing --json": 1,
        f"show {directory}/job/chk-1": 0,
        f"verify {directory}/job/chk-1": 3,
    }
    for command, status in commands.items():
        assert _status_without_reader("-m", "holdfast", *command.split()) == status


def test_interrupted_output_is_not_a_success() -> None:
    program = (
        "import sys; from holdfast.cli import main; from holdfast.cli import listing; "
        "listing.find_checkpoints = lambda _: print('much', flush=True); "
        "sys.exit(main(['list', 'file:///data']))"
    )
    assert _status_without_reader("-c", program) == 141


def _status_without_reader(*arguments: str) -> int:
    """Return the exit status of Python when its output has no reader."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as unread:
        ran = subprocess.run(
            [sys.executable, *arguments],
            env={key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"},
            stdout=unread,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert b"Traceback" not in ran.stderr
    return ran.returncode


def test_output_to_a_full_disk_is_status_3(tmp_path: Path) -> None:
    write_checkpoint(f"file://{tmp_path}", 1)
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "holdfast", "list", f"file://{tmp_path}"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ran.returncode == 3
    assert ran.stderr.count("\n") == 1
    assert "no space left" in ran.stderr
