"""`holdfast explain`."""

import re
from pathlib import Path

import pytest

from holdfast.cli.command_line import main
from holdfast.errors import BatchGapError

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
