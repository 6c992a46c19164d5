"""Runs a page in a directory of its own: its Python as one program, then its shell blocks in order."""

import os
import re
import subprocess
import sys
from pathlib import Path

from pages.blocks import Block, python_of, shell_blocks_of

_PLACES = re.compile(r"(?<![\w.-])/(?:tmp|(?P<data>data))/")

_SHELL = "set -euo pipefail\n"
_LONGEST_S = 580


def run_page(page: Path, directory: Path, **environment: str) -> str:
    """Run all of a page; what its Python has printed.

    Args:
        page: The page.
        directory: Stands for /tmp, and its `data` for /data; all else is as printed.
        environment: More variables.
    """
    program = python_of(page)
    printed = ""
    if program:
        script = directory / "page.py"
        script.write_text(_in(directory, program))
        ran = _run([sys.executable, str(script)], directory, environment)
        assert ran.returncode == 0, ran.stderr
        printed = ran.stdout
    for block in shell_blocks_of(page):
        if not block.not_run:
            run_block(block, directory, **environment)
    return printed


def run_block(block: Block, directory: Path, **environment: str) -> None:
    """Run a shell block; it must succeed, and say what the page shows."""
    commands = _in(directory, block.commands)
    ran = _run(["bash", "-c", _SHELL + commands], directory, environment)
    assert ran.returncode == 0, f"{block} has said {ran.stdout}{ran.stderr}"
    said = [_words(line) for line in (ran.stdout + ran.stderr).splitlines()]
    missing = [line for line in block.shown if _words(_in(directory, line)) not in said]
    assert missing == [], f"{block} has said {ran.stdout}{ran.stderr}"


def _words(line: str) -> str:
    return " ".join(line.split())


def _in(directory: Path, text: str) -> str:
    # In one go: the directory may be below /tmp itself.
    return _PLACES.sub(
        lambda found: f"{directory}/data/" if found["data"] else f"{directory}/", text
    )


def _run(
    command: list[str], directory: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, "PATH": path, "PYSPARK_PYTHON": sys.executable, **environment},
        capture_output=True,
        text=True,
        timeout=_LONGEST_S,
        check=False,
    )
