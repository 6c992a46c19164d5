"""Command lines of Flink's keyed backends: `benchmarks/flink/KeyedState.java`, each in a separate JVM."""

import os
import shutil
from pathlib import Path

from benchmarks.rounds import LeftOutError

_SOURCE = Path(__file__).parents[1] / "flink" / "KeyedState.java"

_OPENED = ["java.base/java.lang", "java.base/java.util"]
"""Packages that Flink's scripts open to it, as far as this benchmark uses them."""


def flink_command(backend: str, directory: Path, jars: Path, managed_bytes: int) -> list[str]:
    """The command that starts a backend, `heap` or `rocksdb`.

    Raises:
        LeftOutError: There is no JDK.
    """
    home = os.environ.get("JAVA_HOME")
    path = f"{home}/bin" if home else None
    java, javac = shutil.which("java", path=path), shutil.which("javac", path=path)
    if java is None or javac is None:
        raise LeftOutError("it needs a JDK of 17 or newer, and there is no javac")
    heap = "6g" if backend == "heap" else "1g"
    opened = [f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED]
    arguments = [backend, str(directory), str(managed_bytes)]
    return [java, f"-Xmx{heap}", *opened, "-cp", f"{jars}/*", str(_SOURCE), *arguments]
