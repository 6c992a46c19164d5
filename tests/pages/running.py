"""Runs a page in a separate directory: its Python as one program, then its shell blocks in order."""

import os
import re
import runpy
import subprocess
import sys
import warnings
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from unittest import mock

from contracts.patience import RUN_HANGS_S
from pages.blocks import Block, blocks_of, python_of
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQueryManager

from holdfast.spark.compat import settings_of

_PLACES = re.compile(r"(?<![\w.-])/(?:tmp|(?P<data>data))/")

_PERIOD = re.compile(r"\bquery\.awaitTermination\(\d\d+\)")
_TWO_BATCHES = "while len(query.recentProgress) < 2: query.awaitTermination(1)"

_SLEEP = re.compile(r"\bsleep \d+(?=; kill)")

_SHELL = "set -euo pipefail\n"


def saves_files(page: Path) -> bool:
    """Return whether a page has its reader save its code as files, which the page's commands run."""
    return any(block.saved_as for block in blocks_of(page))


def run_page(
    page: Path,
    directory: Path,
    spark: SparkSession | None = None,
    *,
    leave_out: Container[str] = (),
    replacements: Mapping[str, str] | None = None,
    **environment: str,
) -> str:
    """Run all of a page; return the output of its Python.

    Args:
        page: The page.
        directory: Replaces /tmp, and its `data` replaces /data.
        spark: The session of this process, which runs the Python; None for a separate process.
        leave_out: Headings of sections that are left out.
        replacements: Further texts of the page, and what replaces them in the saved files.
        environment: Additional variables of other processes.
    """
    printed = ""
    if python_of(page) and not saves_files(page):
        script = directory / "page.py"
        script.write_text(_in(directory, python_of(page)))
        if spark is not None:
            printed = _run_here(script, spark)
        else:
            ran = _run([sys.executable, str(script)], directory, environment)
            assert ran.returncode == 0, ran.stderr
            printed = ran.stdout
    for block in blocks_of(page):
        if block.section in leave_out:
            continue
        if block.saved_as:
            text = _in(directory, block.text)
            for old, new in (replacements or {}).items():
                text = text.replace(old, new)
            (directory / block.saved_as).write_text(text)
        elif block.language in {"sh", "console"} and not block.not_run:
            run_block(block, directory, **environment)
    return printed


def _run_here(script: Path, spark: SparkSession) -> str:
    """Run a program in this process, where it finds the session; return its output."""
    before = settings_of(spark)
    printed = StringIO()
    try:
        with (
            redirect_stdout(printed),
            warnings.catch_warnings(action="default"),
            _without_new_listeners(spark),
        ):
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


@contextmanager
def _without_new_listeners(spark: SparkSession) -> Iterator[None]:
    """Remove the listeners that the block adds: they would print in later tests."""
    added: list[StreamingQueryListener] = []
    add_listener = StreamingQueryManager.addListener

    def add(manager: StreamingQueryManager, listener: StreamingQueryListener) -> None:
        added.append(listener)
        add_listener(manager, listener)

    with mock.patch.object(StreamingQueryManager, "addListener", add):
        try:
            yield
        finally:
            for listener in added:
                spark.streams.removeListener(listener)


def run_block(block: Block, directory: Path, **environment: str) -> None:
    """Run a shell block; it must succeed, and print the lines that the page shows."""
    commands = _SLEEP.sub(_until_checkpoint(directory), _in(directory, block.commands))
    ran = _run(["bash", "-c", _SHELL + commands], directory, environment)
    assert ran.returncode == 0, f"{block} has printed {ran.stdout}{ran.stderr}"
    printed_lines = [_words(line) for line in (ran.stdout + ran.stderr).splitlines()]
    missing = [line for line in block.shown if _words(_in(directory, line)) not in printed_lines]
    assert missing == [], f"{block} has printed {ran.stdout}{ran.stderr}"


def _until_checkpoint(directory: Path) -> str:
    """Shell commands that wait for a new checkpoint, however slow the machine is."""
    completed = f"find '{directory}' -path '*/chk-*/_metadata' | sort"
    return (
        f'before=$({completed}); while [ "$({completed})" = "$before" ] && kill -0 $!; '
        "do sleep 0.5; done"
    )


def _words(line: str) -> str:
    return " ".join(line.split())


def _in(directory: Path, text: str) -> str:
    # In one go: the directory may be below /tmp itself.
    text = _PLACES.sub(
        lambda match: f"{directory}/data/" if match["data"] else f"{directory}/", text
    )
    return _PERIOD.sub(_TWO_BATCHES, text)


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
