"""The engines."""

import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from hdfs_native import Client

from benchmarks.hdfs.python import HdfsNative, Holdfast, Store, Threads
from benchmarks.hdfs.works import Work
from benchmarks.rounds import peak_growth_bytes

PYTHON: dict[str, Callable[[str], Store]] = {
    "holdfast": Holdfast,
    "hdfs-native": partial(HdfsNative, hsync=False),
    "hdfs-native+hsync": partial(HdfsNative, hsync=True),
}
"""Factories of the stores of in-process engines, called with the URI of the file system."""

JVM = {"jvm": False, "jvm+hsync": True}
"""The engines in the JVM; True for one that syncs."""

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
