"""Completion in shells, and `--version`."""

import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from holdfast.cli.command_line import main


@pytest.fixture
def script(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Path:
    """The script for a shell."""
    assert main(["completion", request.param]) == 0
    file = tmp_path / "script"
    file.write_text(capsys.readouterr().out)
    return file


COMPLETE = """
set -eu
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_shtab_holdfast
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize("script", ["bash"], indirect=True)
def test_bash_completes_commands_options_and_files(script: Path) -> None:
    def complete(*words: str) -> set[str]:
        done = subprocess.run(
            ["bash", "--norc", "-c", COMPLETE, "bash", str(script), "holdfast", *words],
            cwd=script.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )
        return {line.strip() for line in done.stdout.splitlines()} - {""}

    subprocess.run(["bash", "-n", str(script)], check=True)
    assert complete("li") == {"list"}
    assert complete("r") >= {"restore", "rollback"}
    assert complete("rollback", "--ch") == {"--checkpoint", "--checkpoint-dir"}
    assert complete("completion", "") >= {"bash", "zsh"}
    (script.parent / "job.conf").touch()
    assert complete("clean", "--properties-file", "jo") == {"job.conf"}


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh on this machine")
@pytest.mark.parametrize("script", ["zsh"], indirect=True)
def test_zsh_accepts_its_script(script: Path) -> None:
    subprocess.run(["zsh", "-n", str(script)], check=True)
    command = 'autoload -U compinit; compinit -u -D; source "$1"; whence -w _shtab_holdfast'
    done = subprocess.run(
        ["zsh", "-f", "-c", command, "zsh", str(script)],
        cwd=script.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "function" in done.stdout


def test_version_prints_the_version_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"holdfast {version('holdfast')}\n"
