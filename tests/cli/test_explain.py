"""`holdfast explain`."""

import json
import re
import shutil
from pathlib import Path

import pytest
from jobs.stopped_query import QUERY, write_stopped

from holdfast.cli.command_line import main
from holdfast.errors import BatchGapError

CAUSES = [
    ("HF-NO-CHECKPOINT", ["show", "{0}/nothing"]),
    ("HF-NO-CHECKPOINT", ["rollback", "{0}/original", "--checkpoint", "99"]),
    ("HF-NO-QUERY", ["savepoint", "{0}/checkpoints", "{0}/savepoints"]),
    ("HF-SETTING", ["savepoint", "{0}/original", "{0}/savepoints", "--conf", "spark.holdfast.x=1"]),
    ("HF-SETTING", ["savepoint", "{0}/original"]),
    ("HF-LOCATION", ["list", "/data/holdfast"]),
    ("HF-OVERLAP", ["savepoint", "{0}/original", "{0}/original/savepoints"]),
    ("HF-WITHOUT-OPERATORS", ["rollback", "{0}/original", "--batch", "1"]),
    ("HF-NOT-A-SAVEPOINT", ["restore", f"{{0}}/checkpoints/{QUERY}/chk-4", "{0}/fork"]),
    ("HF-MOVED", ["show", "{0}/moved/chk-9"]),
    ("HF-CORRUPTED", ["show", "{0}/damaged/chk-9"]),
    ("HF-FILE-MISSING", ["rollback", "{0}/original", "--checkpoint", "2"]),
]
"""The end of an error, and a command that causes it."""

RUNBOOK = (Path(__file__).parents[2] / "docs" / "runbook.md").read_text()
CODES = re.findall(r"^### (HF-\S+)$", RUNBOOK, re.MULTILINE)


def test_explain_without_a_code_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    assert capsys.readouterr().out.split() == CODES


@pytest.mark.parametrize("code", CODES)
def test_explain_prints_the_whole_entry_of_a_code(
    code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", code]) == 0
    heading, _, entry = capsys.readouterr().out.partition("\n\n")
    assert heading == f"{code}: docs/runbook.md#{code.lower()}"
    assert re.findall(r"^\*\*(\w+):\*\*", entry, re.MULTILINE) == ["See", "Data", "Do", "Check"]
    assert f"### {code}\n\n{entry.rstrip()}\n" in RUNBOOK


def test_a_code_is_accepted_as_in_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(BatchGapError("gap")).split()[-1]]) == 0
    assert main(["explain", "hf-batch-gap"]) == 0
    assert capsys.readouterr().out.count("HF-BATCH-GAP: ") == 2


def test_an_unknown_code_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "HF-NOTHING"]) == 1
    assert capsys.readouterr() == (
        "",
        "holdfast: no code 'HF-NOTHING'; `holdfast explain` lists all codes\n",
    )


@pytest.mark.usefixtures("as_without_spark")
@pytest.mark.parametrize(("code", "words"), CAUSES)
def test_a_failed_command_ends_with_the_code_of_its_cause(
    code: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = f"file://{tmp_path}"
    write_stopped(directory)
    (checkpoint,) = tmp_path.glob("checkpoints/*/chk-4")
    for copy in ("moved", "damaged"):
        shutil.copytree(checkpoint, tmp_path / copy / "chk-9")
    (tmp_path / "damaged" / "chk-9" / "_metadata").write_bytes(b"")
    (tmp_path / "original" / "offsets" / "1").unlink()
    assert main([word.format(directory) for word in words]) in (1, 2, 3)
    assert capsys.readouterr().err.splitlines()[-1].endswith(f" [{code}]")


@pytest.mark.usefixtures("as_without_spark")
@pytest.mark.parametrize("damage", ["checkpoints/*/chk-4/_metadata", "offsets/3", "nothing"])
def test_rollback_as_in_the_runbook_repairs_a_query(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    location = write_stopped(f"file://{tmp_path}")
    for file in tmp_path.glob(f"**/{damage}"):
        file.write_bytes(b"") if file.name == "_metadata" else file.unlink()
    rollback = ["rollback", location]
    assert main([*rollback, "--json"]) == 0
    assert 3 in [row["checkpoint"] for row in json.loads(capsys.readouterr().out)]
    assert main([*rollback, "--checkpoint", "3"]) == 0
    assert main([*rollback, "--checkpoint", "3", "--yes"]) == 0
    assert "resumes with batch 3" in capsys.readouterr().err
    assert main(["verify", f"file://{tmp_path}/checkpoints"]) == 0
