"""Fresh interpreters that race, die or have no rights."""

import subprocess
import sys


def python(source: str, *arguments: str) -> subprocess.Popen[str]:
    """Start an interpreter; it talks through its standard streams."""
    return subprocess.Popen(
        [sys.executable, "-c", source, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output_of(source: str, *arguments: str) -> str:
    """What a script prints; it has to succeed."""
    with python(source, *arguments) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out.strip()
