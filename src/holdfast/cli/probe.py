"""`holdfast probe`: whether a store does what checkpoints need."""

import argparse
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from holdfast.cli.options import STORES, command, configure_stores, json_option, option
from holdfast.cli.output import print_json, print_table
from holdfast.common import fill, uripath
from holdfast.errors import CheckpointError, CheckpointNotFoundError, InvalidRequestError
from holdfast.locations.file_systems import (
    PROBE_PREFIX,
    check_exclusive,
    create_file,
    file_system_for,
    pending_uploads,
)

_FAILED = 3

_LARGE_BYTES = 20 << 20
"""Three parts of the default size."""

_CHUNK_BYTES = 1 << 20

# Errors that are about the command, not about what the store can do.
_OF_USAGE = {"no-bucket", "missing-package", "connection"}


class _UnmetError(Exception):
    """A requirement that the store does not meet."""


@command(
    "probe",
    help="test whether a store does what checkpoints need",
    description="Test whether a store does what checkpoints need, in a new directory that is deleted again.\n"
    "Eight writers race for one name, twenty megabytes are written in parts, a file is aborted,\n"
    "and missing files are deleted. It can expose a store that is not suitable, and not prove that one is.",
    examples="""
        holdfast probe s3://bucket/checkpoints --conf spark.holdfast.s3.endpoint=https://store:9000
        holdfast probe abfss://container@account.dfs.core.windows.net/checkpoints
    """,
    options=[
        option(
            "directory", metavar="DIRECTORY", help="URI of a directory, which may not exist yet"
        ),
        json_option("one object"),
        STORES,
    ],
)
def probe_command(options: argparse.Namespace) -> int:
    """Test each requirement; the status is 3 if the store does not meet one."""
    directory = uripath.normalize(options.directory)
    configure_stores(options, directory)
    results: dict[str, str] = {}
    with _new_directory(directory) as scratch:
        for title, test in _REQUIREMENTS.items():
            results[title] = "yes"
            try:
                test(scratch)
            except (CheckpointError, _UnmetError) as error:
                if isinstance(error, InvalidRequestError) and error.kind in _OF_USAGE:
                    raise
                results[title] = f"no: {error}"
    if options.json:
        print_json(results)
    else:
        print_table([{"requirement": each, "met": result} for each, result in results.items()])
    return 0 if set(results.values()) == {"yes"} else _FAILED


@contextmanager
def _new_directory(directory: str) -> Iterator[str]:
    scratch = uripath.join(directory, f"{PROBE_PREFIX}{uuid.uuid4().hex}")
    file_system = file_system_for(directory)
    file_system.prepare_directory(directory)
    file_system.prepare_directory(scratch)
    try:
        yield scratch
    finally:
        with suppress(CheckpointError):
            file_system.delete_tree(scratch)


def _write(uri: str, size: int) -> None:
    with create_file(file_system_for(uri), uri) as write:
        for first in range(0, size, _CHUNK_BYTES):
            write(_content(first, min(size, first + _CHUNK_BYTES)))


def _content(first: int, end: int) -> bytes:
    """Return bytes that differ at each position of a part."""
    return b"".join(number.to_bytes(4) for number in range(first // 4, -(-end // 4)))[: end - first]


def _files(directory: str) -> dict[str, int]:
    """Return the sizes of the files of a directory by name."""
    entries = file_system_for(directory).list(directory)
    return {uripath.name(entry.uri): entry.size for entry in entries if not entry.is_directory}


def _expect_files(directory: str, expected: dict[str, int]) -> None:
    listed = _files(directory)
    if listed != expected:
        raise _UnmetError(f"a listing has {listed} instead of {expected}")


def _lists_small_file(directory: str) -> None:
    _write(uripath.join(directory, "small"), 10)
    _expect_files(directory, {"small": 10})


def _reads_large_file(directory: str) -> None:
    uri = uripath.join(directory, "large")
    _write(uri, _LARGE_BYTES)
    with file_system_for(uri).open(uri) as stream:
        for position in (_LARGE_BYTES // 2, 0, _LARGE_BYTES - _CHUNK_BYTES):
            stream.seek(position)
            data = bytearray(_CHUNK_BYTES)
            fill(stream, memoryview(data))
            if data != _content(position, position + _CHUNK_BYTES):
                raise _UnmetError(f"bytes from {position} on are not those that were written")


def _forgets_aborted_file(directory: str) -> None:
    before = _files(directory)
    uri = uripath.join(directory, "aborted")
    stream = file_system_for(uri).create(uri)
    try:
        for first in range(0, _LARGE_BYTES, _CHUNK_BYTES):
            stream.write(_content(first, first + _CHUNK_BYTES))
    finally:
        stream.abort()
    _expect_files(directory, before)
    if pending_uploads(directory):
        raise _UnmetError("an upload remains")


def _deletes_files(directory: str) -> None:
    uris = [uripath.join(directory, name) for name in ("small", "missing", "large")]
    file_system = file_system_for(directory)
    file_system.delete(uris)
    _expect_files(directory, {})
    with suppress(CheckpointNotFoundError):
        file_system.open(uris[0]).close()
        raise _UnmetError("a deleted file can be read")


_REQUIREMENTS: dict[str, Callable[[str], None]] = {
    "one of several writers of a name wins": check_exclusive,
    "a new file is listed at once": _lists_small_file,
    "a large file is read at any position": _reads_large_file,
    "an aborted file leaves nothing": _forgets_aborted_file,
    "files are deleted, and missing ones ignored": _deletes_files,
}
"""The requirements in the order of their tests."""
