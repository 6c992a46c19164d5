"""Runs a page in a separate directory: its Python as one program, then its shell blocks in order."""

import os
import re
import runpy
import subprocess
import sys
import warnings
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from contracts.patience import RUN_HANGS_S
from pages.blocks import Block, python_of, shell_blocks_of
from pyspark.sql import SparkSession

from holdfast.spark.compat import settings_of

_PLACES = re.compile(r"(?<![\w.-])/(?:tmp|(?P<data>data))/")

_SAVED = re.compile(r"Save this as `(?P<name>\w+\.py)`")

_SLEEP = re.compile(r"\bsleep \d+(?=; kill)")

_SHELL = "set -euo pipefail\n"


def saved_name_of(page: Path) -> str:
    """Return the file name that a page asks its reader to save its Python as; empty without one."""
    saved = _SAVED.search(page.read_text())
    return saved["name"] if saved else ""


def run_page(
    page: Path, directory: Path, spark: SparkSession | None = None, **environment: str
) -> str:
    """Run all of a page; return the output of its Python.

    Args:
        page: The page.
        directory: Replaces /tmp, and its `data` replaces /data.
        spark: The session of this process, which runs the Python; None for a separate process.
        environment: Additional variables of other processes.
    """
    program = python_of(page)
    printed = ""
    if program:
        saved_name = saved_name_of(page)
        script = directory / (saved_name or "page.py")
        script.write_text(_in(directory, program))
        if spark is not None:
            printed = _run_here(script, spark)
        elif not saved_name:  # else the commands of the page run it
            ran = _run([sys.executable, str(script)], directory, environment)
            assert ran.returncode == 0, ran.stderr
            printed = ran.stdout
    for block in shell_blocks_of(page):
        if not block.not_run:
            run_block(block, directory, **environment)
    return printed


def _run_here(script: Path, spark: SparkSession) -> str:
    """Run a program in this process, where it finds the session; return its output."""
    before = settings_of(spark)
    printed = StringIO()
    try:
        with redirect_stdout(printed), warnings.catch_warnings(action="default"):
            runpy.run_path(str(script), run_name="__main__")
    finally:
        for query in spark.streams.active:
            query.stop()
        for key, value in settings_of(spark).items():
            if key not in before:
                spark.conf.unset(key)
            elif value != before[key]:
                spark.conf.set(key, before[key])
    return printed.getvalue()


def run_block(block: Block, directory: Path, **environment: str) -> None:
    """Run a shell block; it must succeed, and print the lines that the page shows."""
    commands = _SLEEP.sub(_until_checkpoint(directory), _in(directory, block.commands))
    ran = _run(["bash", "-c", _SHELL + commands], directory, environment)
    assert ran.returncode == 0, f"{block} has printed {ran.stdout}{ran.stderr}"
    printed_lines = [_words(line) for line in (ran.stdout + ran.stderr).splitlines()]
    missing = [line for line in block.shown if _words(_in(directory, line)) not in printed_lines]
    assert missing == [], f"{block} has printed {ran.stdout}{ran.stderr}"


def _until_checkpoint(directory: Path) -> str:
    """Shell command that waits for a checkpoint, however slow the machine is."""
    return (
        f"until compgen -G '{directory}/holdfast/*/chk-*/_metadata' > /dev/null; do sleep 1; done"
    )


def _words(line: str) -> str:
    return " ".join(line.split())


def _in(directory: Path, text: str) -> str:
    # In one go: the directory may be below /tmp itself.
    return _PLACES.sub(
        lambda match: f"{directory}/data/" if match["data"] else f"{directory}/", text
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
        timeout=RUN_HANGS_S,
        check=False,
    )
