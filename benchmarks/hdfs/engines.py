"""Which engines there are."""

import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from hdfs_native import Client

from benchmarks.hdfs.python import HdfsNative, Holdfast, Store, Threads
from benchmarks.hdfs.works import Work
from benchmarks.turns import peak_growth_bytes

PYTHON: dict[str, Callable[[str], Store]] = {
    "holdfast": Holdfast,
    "hdfs-native": partial(HdfsNative, hsync=False),
    "hdfs-native+hsync": partial(HdfsNative, hsync=True),
}
"""Makes of the file system's URI the stores of engines that work in this process."""

JVM = {"jvm": False, "jvm+hsync": True}
"""Whether engines in the JVM sync."""

TITLES = {
    "holdfast": "Holdfast",
    "hdfs-native": "hdfs-native",
    "hdfs-native+hsync": "hdfs-native+hsync",
    "jvm": "JVM",
    "jvm+hsync": "JVM+hsync",
}
"""By the name that the command line knows; ratios are to the first one that takes part."""


def growth_bytes_of(name: str, uri: str, data: Path, work: Work) -> dict[str, int]:
    """By how much this process grows at most while it does each action of a work."""
    engine = Threads(PYTHON[name](uri), data)
    client = Client(uri)
    directory, other = (f"/{uuid.uuid4().hex}" for _ in range(2))
    client.mkdirs(directory)
    client.mkdirs(other)
    small = replace(work, files=1, file_bytes=4 << 10)
    for action in work.actions:
        engine.run(action, small, other)  # connects
    growths = {}
    for action in work.actions:
        growths[action], _ = peak_growth_bytes(partial(engine.run, action, work, directory))
    client.delete(directory, recursive=True)
    client.delete(other, recursive=True)
    return growths
