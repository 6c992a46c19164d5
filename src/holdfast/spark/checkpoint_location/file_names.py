"""Names of the files of a checkpointLocation. Pure.

    offsets/N, commits/N                     two of each: Spark also reads the one before
    sources/<source>/<k>, <k>.compact        files that the source has seen, up to the batch's offset
    sources/<source>/offsets/<k>             the same, for Iceberg
    state/<operator>/_metadata/…             properties of the operator; v2/<batch> from that batch on
    state/<operator>/_stateSchema/…/<batch>_…
    state/<operator>/<partition>/[<store>/]<version>[_<id>].delta|snapshot|zip|changelog[.crc]
                                             version N + 1 is the state after batch N
    state/<operator>/<partition>/[<store>/]SSTs/…    parts of the zips, which refer to them

Names that begin with a dot are Hadoop's side files, and files in progress; `…_$folder$` represents
a directory in S3.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

_NUMBER = re.compile(r"0|[1-9][0-9]*")
_COMPACT = re.compile(r"(0|[1-9][0-9]*)\.compact")
_VERSION = re.compile(
    r"(?P<version>[0-9]+)(?:_(?P<id>[0-9a-f-]{36}))?\.(?P<kind>delta|snapshot|zip|changelog)"
    r"(?P<checksum>\.crc)?"
)
_OPERATOR_BATCH = re.compile(r"state/[^/]+/_metadata/v2/([0-9]+)")
_SCHEMA_BATCH = re.compile(r"state/[^/]+/_stateSchema/.*?([0-9]+)_[^/]*")
_PARTITION = re.compile(r"state/(?P<operator>[^/]+)/(?P<partition>[0-9]+)(?:/(?P<rest>.*))?")
_PART = re.compile(r"state/[^/]+/[0-9]+/(?:[^/]+/)?(?:SSTs|logs)/[^/]+")
_INITIAL_OFFSET = "offsets/"
_IMMUTABLE = re.compile(
    r"state/.*(?:/SSTs/[^/]+\.sst|/_stateSchema/.*|/[0-9]+_[0-9a-f-]{36}\.[a-z.]+)"
)


@dataclass(frozen=True, slots=True)
class StateFile:
    """The name of a file that contains one version of a store's state.

    Attributes:
        path: The file, relative to the checkpointLocation.
        state_id: Id of the attempt at the version; None in format 1, which has no ids.
        kind: `delta` or `changelog` for changes, `snapshot` or `zip` for a whole state.
        is_checksum: Whether the file is only the checksum of such a file.
    """

    path: str
    version: int
    state_id: str | None
    kind: str
    is_checksum: bool


class PartitionPath(NamedTuple):
    """A path at or below the directory of a partition of state; `rest` is what follows, or empty."""

    operator: str
    partition: int
    rest: str


def is_hidden(path: str) -> bool:
    """Return whether a file is a side file or a file in progress."""
    name = path.rpartition("/")[2]
    return name.startswith(".") or name.endswith("_$folder$")


def is_immutable(path: str) -> bool:
    """Return whether a file of that name never gets another content."""
    return _IMMUTABLE.fullmatch(path) is not None


def is_part_of_zip(path: str) -> bool:
    """Return whether a file contains data of a zip next to it, which refers to the file."""
    return _PART.fullmatch(path) is not None


def is_compact(path: str) -> bool:
    """Return whether an entry of a source's log also contains all entries before it."""
    return path.endswith(".compact")


def logged_batches(paths: Iterable[str], log: str) -> list[int]:
    """Return the batches that have entries in a log, `offsets` or `commits`, in order."""
    return sorted(number for path in paths if (number := log_entry(path, log)) is not None)


def log_entry(path: str, log: str) -> int | None:
    """Return the batch of an entry of a log, `offsets` or `commits`; None for any other file."""
    directory, _, name = path.partition("/")
    return int(name) if directory == log and _NUMBER.fullmatch(name) else None


def source_entry(path: str) -> int | None:
    """Return the number of an entry of a source's log; None for any other file."""
    _, _, rest = path.removeprefix("sources/").partition("/")
    rest = rest.removeprefix(_INITIAL_OFFSET)
    match = _NUMBER.fullmatch(rest) or _COMPACT.fullmatch(rest)
    return int(match[0].partition(".")[0]) if match else None


def partition_path(path: str) -> PartitionPath | None:
    """Split a path at or below the directory of a partition; None for any other path."""
    match = _PARTITION.fullmatch(path)
    if match is None:
        return None
    return PartitionPath(match["operator"], int(match["partition"]), match["rest"] or "")


def state_file(path: str) -> StateFile | None:
    """Parse the name of a state file; None for any other file."""
    match = _VERSION.fullmatch(path.rpartition("/")[2])
    if match is None or _PARTITION.fullmatch(path) is None:
        return None
    return StateFile(
        path, int(match["version"]), match["id"], match["kind"], match["checksum"] is not None
    )


def state_files(paths: Iterable[str]) -> dict[str, list[StateFile]]:
    """Return all files of versions of state, by the directory of their store."""
    by_store: dict[str, list[StateFile]] = defaultdict(list)
    for path in paths:
        file = None if is_hidden(path) else state_file(path)
        if file is not None:
            by_store[path.rpartition("/")[0]].append(file)
    return by_store


def writing_batch(path: str) -> int | None:
    """Return the batch that wrote a file about an operator, if the name contains it."""
    match = _OPERATOR_BATCH.fullmatch(path) or _SCHEMA_BATCH.fullmatch(path)
    return int(match[1]) if match else None
