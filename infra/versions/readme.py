"""Runs the example of the README, as a reader would: its program is saved, and its commands go to a shell."""

import os
import re
import subprocess
import tempfile
from pathlib import Path

_PROGRAM = re.compile(r"Save this as `(?P<name>\w+\.py)`.*?```python\n(?P<text>.*?)```", re.DOTALL)
_CONSOLE = re.compile(r"```console\n(?P<text>.*?)```", re.DOTALL)
_PRINTED = ('{"orders": ', "all checksums match")
"""Parts of the output of the commands, if they succeed."""

_DIRECTORY = "/tmp/"  # noqa: S108  # of the page, where an earlier run may have left its checkpoints


def run_readme(readme: Path, commands: Path) -> bool:
    """Run the example; returns whether its output is as expected. Prints the output if it is not.

    Args:
        readme: The page.
        commands: The folder of `python` and `holdfast`.
    """
    page = readme.read_text()
    program = _PROGRAM.search(page)
    assert program is not None
    console = _CONSOLE.search(page, program.end())
    assert console is not None
    lines = console["text"].splitlines()
    script = "\n".join(line.removeprefix("$ ") for line in lines if line.startswith("$ "))
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / program["name"]).write_text(
            program["text"].replace(_DIRECTORY, f"{directory}/")
        )
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYSPARK_", "PYTHON", "SPARK_", "VIRTUAL_ENV"))
        }
        done = subprocess.run(
            ["bash", "-c", script.replace(_DIRECTORY, f"{directory}/")],
            cwd=directory,
            env={**environment, "PATH": f"{commands}:{environment['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    succeeded = done.returncode == 0 and all(text in done.stdout for text in _PRINTED)
    if not succeeded:
        print(done.stdout)
    return succeeded
