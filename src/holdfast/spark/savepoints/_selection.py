"""Which files of a checkpointLocation a query needs to go on behind a batch. Pure.

    offsets/N, commits/N                     two of each: Spark wants the one before too
    sources/<source>/<k>, <k>.compact        what the source has seen, up to the batch's offset
    state/<operator>/_metadata/…             what the operator is; v2/<batch> from that batch on
    state/<operator>/_stateSchema/…/<batch>_…
    state/<operator>/<partition>/[<store>/]<version>[_<id>].delta|snapshot|zip|changelog[.crc]
                                             version N + 1 is the state behind batch N
    state/<operator>/<partition>/[<store>/]SSTs/…    parts of the zips, which name them

Names that begin with a dot are Hadoop's side files, and files in the making.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from holdfast.errors import CheckpointNotFoundError, InvalidRequestError
from holdfast.spark.savepoints._logs import SHUFFLE_PARTITIONS, Offsets

METADATA = "metadata"

_NUMBER = re.compile(r"0|[1-9][0-9]*")
_COMPACT = re.compile(r"(0|[1-9][0-9]*)\.compact")
_VERSION = re.compile(
    r"(?P<version>[0-9]+)(?:_(?P<id>[0-9a-f-]{36}))?\.(?P<kind>delta|snapshot|zip|changelog)"
    r"(?P<checksum>\.crc)?"
)
_OPERATOR_BATCH = re.compile(r"state/[^/]+/_metadata/v2/([0-9]+)")
_SCHEMA_BATCH = re.compile(r"state/[^/]+/_stateSchema/.*?([0-9]+)_[^/]*")
_PARTITION = re.compile(r"state/[^/]+/([0-9]+)(?:/.*)?")
_PARTS = {"SSTs", "logs"}
_UNIQUE = re.compile(
    r"state/.*(?:/SSTs/[^/]+\.sst|/_stateSchema/.*|/[0-9]+_[0-9a-f-]{36}\.[a-z.]+)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch that the stream has come to.

    Attributes:
        batch_id: Its number.
        is_committed: Whether Spark has noted that it is done.
        offsets: Spark's entry of its offset log.
        state_ids: For versions of the state in format 2, the ids that count.
    """

    batch_id: int
    is_committed: bool
    offsets: Offsets
    state_ids: Mapping[int, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Version:
    """A file of one version of a store's state."""

    path: str
    version: int
    state_id: str | None
    kind: str
    is_checksum: bool


def is_hidden(path: str) -> bool:
    """Whether it is a side file, or one in the making."""
    return path.rpartition("/")[2].startswith(".")


def is_unique(path: str) -> bool:
    """Whether a file of that name never gets another content."""
    return _UNIQUE.fullmatch(path) is not None


def numbers(paths: Iterable[str], log: str) -> list[int]:
    """The entries of a log, `offsets` or `commits`, in order."""
    names = (path.removeprefix(f"{log}/") for path in paths if path.startswith(f"{log}/"))
    return sorted(int(name) for name in names if _NUMBER.fullmatch(name))


def version_of(path: str) -> Version | None:
    """What a file of state is, or None of another one."""
    found = _VERSION.fullmatch(path.rpartition("/")[2])
    if found is None or _PARTITION.fullmatch(path) is None:
        return None
    return Version(
        path, int(found["version"]), found["id"], found["kind"], found["checksum"] is not None
    )


def select(paths: Collection[str], batch: Batch) -> list[str]:
    """The files that are needed, but for parts of zips.

    Args:
        paths: All files of a checkpointLocation, relative to it.
        batch: The batch to go on behind.

    Raises:
        CheckpointNotFoundError: One is missing: Spark deletes old ones while it runs.
        InvalidRequestError: A source keeps something that is not known.
    """
    listed = frozenset(paths)
    versions = state_versions(paths)
    return sorted(
        [
            *_log_entries(listed, batch),
            *_sources(listed, batch),
            *_operators(listed, batch.batch_id),
            *(one.path for one in _state(versions, batch)),
        ]
    )


def state_versions(paths: Iterable[str]) -> dict[str, list[Version]]:
    """All versions of state by the directory of their store."""
    found: dict[str, list[Version]] = defaultdict(list)
    for path in paths:
        version = None if is_hidden(path) else version_of(path)
        if version is not None:
            found[path.rpartition("/")[0]].append(version)
    return found


def beyond(paths: Iterable[str], batch: Batch) -> list[str]:
    """All files of a checkpointLocation that only batches behind this one have made."""
    found = []
    for path in paths:
        top, _, rest = path.partition("/")
        if is_hidden(path):
            continue
        if top in ("offsets", "commits") and _NUMBER.fullmatch(rest):
            number, last = int(rest), batch.batch_id
        elif top == "sources" and (entry := _entry(path)) is not None:
            number, last = entry, _last_entry(path.split("/")[1], batch)
        elif (made_in := _batch_of(path)) is not None:
            number, last = made_in, batch.batch_id
        elif (version := version_of(path)) is not None:
            number, last = version.version, batch.batch_id + 1
        else:
            continue
        if number > last:
            found.append(path)
    return sorted(found)


def _log_entries(listed: frozenset[str], batch: Batch) -> list[str]:
    batches = [one for one in (batch.batch_id - 1, batch.batch_id) if one >= 0]
    offsets = [f"offsets/{one}" for one in batches]
    committed = batches if batch.is_committed else batches[:-1]
    return [
        METADATA,
        *_all_in(listed, offsets),
        *_all_in(listed, [f"commits/{one}" for one in committed]),
    ]


def _all_in(listed: frozenset[str], paths: list[str]) -> list[str]:
    for path in paths:
        if path not in listed:
            raise CheckpointNotFoundError("Spark's checkpointLocation lacks a file", path)
    return paths


def _sources(listed: frozenset[str], batch: Batch) -> list[str]:
    logs: dict[str, list[str]] = defaultdict(list)
    for path in listed:
        if path.startswith("sources/") and not is_hidden(path):
            if _entry(path) is None:
                message = (
                    f"a source keeps {path!r}, which this version doesn't know how to copy; "
                    "it knows logs such as those of files and of Kafka"
                )
                raise InvalidRequestError(message)
            logs[path.split("/")[1]].append(path)
    return [path for source in logs for path in _source(source, logs[source], batch)]


def _source(source: str, paths: list[str], batch: Batch) -> list[str]:
    last = _last_entry(source, batch)
    entries = {path: entry for path in paths if (entry := _entry(path)) is not None}
    before = {path: entry for path, entry in entries.items() if entry <= last}
    compacted = max((entry for path, entry in before.items() if _is_compact(path)), default=-1)
    needed = [
        path
        for path, entry in before.items()
        if (entry == compacted if _is_compact(path) else entry > compacted)
    ]
    if source in batch.offsets.log_offsets:
        missing = set(range(compacted + 1, last + 1)) - {before[path] for path in needed}
        if missing:
            later = [path for path, entry in entries.items() if _is_compact(path) and entry > last]
            message = f"source {source} has no entry {min(missing)} any more"
            if later:
                message += f"; it was compacted into {min(later)!r}, with later ones"
            raise CheckpointNotFoundError(message, f"sources/{source}")
    return needed


def _last_entry(source: str, batch: Batch) -> int:
    """Number of the last entry of a source's log that the batch knows."""
    return batch.offsets.log_offsets.get(source, batch.batch_id)


def _entry(path: str) -> int | None:
    """Number of an entry of a source's log, or None if it is none."""
    _, _, rest = path.removeprefix("sources/").partition("/")
    found = _NUMBER.fullmatch(rest) or _COMPACT.fullmatch(rest)
    return int(found[0].partition(".")[0]) if found else None


def _is_compact(path: str) -> bool:
    return path.endswith(".compact")


def _operators(listed: frozenset[str], batch_id: int) -> list[str]:
    """What is said of operators and of the schemas of their state."""
    found = []
    for path in listed:
        parts = path.split("/")
        if parts[0] != "state" or is_hidden(path) or version_of(path) is not None:
            continue
        made_in = _batch_of(path)
        is_known = made_in <= batch_id if made_in is not None else "_metadata" in parts
        if is_known:
            found.append(path)
    return found


def _batch_of(path: str) -> int | None:
    """The batch that has written something about an operator, where the name says it."""
    found = _OPERATOR_BATCH.fullmatch(path) or _SCHEMA_BATCH.fullmatch(path)
    return int(found[1]) if found else None


def _state(versions: Mapping[str, list[Version]], batch: Batch) -> list[Version]:
    # A batch that is not committed Spark does again, from the state before it.
    target = batch.batch_id + batch.is_committed
    partitions = int(batch.offsets.pinned.get(SHUFFLE_PARTITIONS, 0))
    needed = []
    for directory, found in versions.items():
        counts = [one for one in found if _is_valid(one, batch) and one.version <= target]
        if not any(one.version == target for one in counts):
            matched = _PARTITION.fullmatch(directory)
            if matched is not None and int(matched[1]) >= partitions > 0:
                continue  # left over from before the state was spread over fewer partitions
        needed += _chain(directory, counts, target)
    return needed


def _is_valid(one: Version, batch: Batch) -> bool:
    ids = batch.state_ids.get(one.version, frozenset())
    return one.state_id is None or not ids or one.state_id in ids


def _chain(directory: str, found: list[Version], target: int) -> list[Version]:
    """The newest whole state, and the changes since."""
    data = [one for one in found if not one.is_checksum]
    whole = max((one.version for one in data if one.kind in ("snapshot", "zip")), default=0)
    missing = set(range(max(whole, 1), target + 1)) - {one.version for one in data}
    if missing:
        message = (
            f"version {max(missing)} of a state, which version {target} builds on, is not there"
        )
        raise CheckpointNotFoundError(message, directory)
    return [one for one in found if one.version >= whole]
