"""Tasks in Python workers, without the fixed costs that PySpark's workers have in each of them."""

import gc
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, wraps
from typing import ParamSpec
from zipimport import zipimporter

import pyarrow as pa

_Parameters = ParamSpec("_Parameters")


def worker_task(
    function: Callable[_Parameters, Iterator[pa.RecordBatch]],
) -> Callable[_Parameters, Iterator[pa.RecordBatch]]:
    """Decorate a function that a task runs in this process, a Python worker, and prepare the process for its next task.

    Without it, a function that does nothing takes 200 ms of CPU time and 40 to 80 ms of waiting, as much as Spark
    itself takes for a small batch.
    """

    @wraps(function)
    def run(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> Iterator[pa.RecordBatch]:
        _send_without_delay()
        yield from function(*args, **kwargs)
        _freeze_loaded_objects()
        _release_archives()

    return run


def _send_without_delay() -> None:
    """Let Spark's JVM and this process send their data to each other at once, on Linux.

    The JVM sends a function and then its rows; the process sends its output in several parts. The kernel of a sender
    keeps a part back until the one before is acknowledged (Nagle's algorithm), and the kernel of a receiver
    acknowledges it after 40 ms. Linux forgets the second option in time, so each task sets it.
    """
    if sys.platform == "linux":
        for number in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # it is closed, like the list itself, or not a TCP connection
                _send_at_once(int(number))


def _send_at_once(file: int) -> None:
    """Set the options of a file that is a connection within this host. Raises `OSError` if it has no such options."""
    connection = socket.socket(fileno=file)
    try:
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            peer, *_ = connection.getpeername()
            if peer.startswith(("127.", "::1", "::ffff:127.")):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    finally:
        connection.detach()


@cache
def _freeze_loaded_objects() -> None:
    """Exclude the objects that the first task of a process has loaded from later garbage collections.

    A Python worker collects garbage after each task, among all objects that were ever imported: some 70 ms of CPU
    time, as much as a small batch costs otherwise. Later calls do nothing, because Python counts the excluded objects
    one by one: 11 ms of CPU time, half of a task of a small batch.
    """
    if not gc.get_freeze_count():
        gc.collect()  # garbage would stay forever
        gc.freeze()


def _release_archives() -> None:
    """Exclude the ZIP archives on the path from `importlib.invalidate_caches`, which PySpark calls in each task.

    Python 3.12 and earlier then reads the directory of an archive again for each package imported from it. Spark puts
    an archive of PySpark and a JAR on the path, which takes 200 ms of CPU time. The next import from an archive uses
    the directory that Python has already read: Spark never replaces a file that a job has added.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]
