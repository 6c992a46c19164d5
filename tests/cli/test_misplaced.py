"""Commands meet a copy of a checkpoint that has the number of another."""

import shutil
from pathlib import Path

import pytest
from contracts.checkpoints import Checkpoint

from holdfast.cli.command_line import main


@pytest.fixture
def directory(tmp_path: Path) -> str:
    Checkpoint(f"file://{tmp_path}").complete()
    shutil.copytree(tmp_path / "job" / "chk-1", tmp_path / "job" / "chk-9")
    return f"file://{tmp_path}"


@pytest.mark.parametrize(
    "command",
    [
        ["show", "{}"],
        ["show", "{}/job/chk-9"],
        ["verify", "{}"],
        ["verify", "--all", "{}"],
        ["copy", "{}/job/chk-9", "{}/copies"],
        ["diff", "{}/job/chk-1", "{}/job/chk-9"],
        ["clean", "{}"],
        ["clean", "--yes", "{}"],
        ["list", "{}"],
    ],
    ids=" ".join,
)
def test_it_is_one_clear_error(
    command: list[str], directory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(directory.removeprefix("file://"))
    before = sorted(root.rglob("*"))
    assert main([word.format(directory) for word in command]) == 3
    errors = capsys.readouterr().err
    assert errors.count("metadata is of checkpoint 1 of job 'job'") == 1
    assert f"{directory}/job/chk-9" in errors
    assert sorted(root.rglob("*")) == before
