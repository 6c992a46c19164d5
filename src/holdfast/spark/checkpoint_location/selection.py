"""Which files of a checkpointLocation a query needs to go on behind a batch. Pure.

    offsets/N, commits/N                     two of each: Spark wants the one before too
    sources/<source>/<k>, <k>.compact        what the source has seen, up to the batch's offset
    sources/<source>/offsets/<k>             the same, of Iceberg
    state/<operator>/_metadata/…             what the operator is; v2/<batch> from that batch on
    state/<operator>/_stateSchema/…/<batch>_…
    state/<operator>/<partition>/[<store>/]<version>[_<id>].delta|snapshot|zip|changelog[.crc]
                                             version N + 1 is the state behind batch N
    state/<operator>/<partition>/[<store>/]SSTs/…    parts of the zips, which name them

Names that begin with a dot are Hadoop's side files, and files in the making; `…_$folder$` stands
for a directory in S3. Anything else is refused by name: what is not known can't be taken back, and what
is left out can be what a query needs.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from holdfast.errors import CheckpointNotFoundError, InvalidRequestError
from holdfast.spark.checkpoint_location.link import LINK_FILE
from holdfast.spark.checkpoint_location.logs import SHUFFLE_PARTITIONS, Offsets

METADATA = "metadata"
UNFINISHED_FILE = "holdfast-unfinished.json"

_TOP = {METADATA, LINK_FILE, UNFINISHED_FILE, "offsets", "commits", "sources", "state"}

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
_WHOLE = {"snapshot", "zip"}
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
        state_ids: Looks up which ids of a version of the state count; none in format 1.
    """

    batch_id: int
    is_committed: bool
    offsets: Offsets
    state_ids: Callable[[int], frozenset[str]]

    @property
    def version(self) -> int:
        """Version of the state that Spark goes on from."""
        # A batch that is not committed Spark does again, from the state before it.
        return self.batch_id + self.is_committed


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
    name = path.rpartition("/")[2]
    return name.startswith(".") or name.endswith("_$folder$")


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
        InvalidRequestError: Something is there that is not known.
    """
    listed = frozenset(path for path in paths if not is_hidden(path))
    for path in sorted(listed):
        if path.partition("/")[0] not in _TOP:
            message = (
                f"there is {path!r}, which this version doesn't know how to copy or take back; it is "
                "not Spark's own"
            )
            raise InvalidRequestError(message)
    versions = state_versions(paths)
    return sorted(
        [
            *_log_entries(listed, batch),
            *_sources(listed, batch),
            *_operators(listed, batch.batch_id),
            *(one.path for one in _state(listed, versions, batch)),
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
        if path.startswith("sources/"):
            if _entry(path) is None:
                message = (
                    f"a source keeps {path!r}, which this version doesn't know how to copy; "
                    "it knows logs such as those of files, Kafka and Iceberg"
                )
                raise InvalidRequestError(message)
            logs[path.split("/")[1]].append(path)
    for source, known in batch.offsets.log_offsets.items():
        if known.is_certain and source not in logs:
            message = (
                f"the log of source {source} is gone, without which all would be read again; bring "
                "its directory back"
            )
            raise CheckpointNotFoundError(message, f"sources/{source}")
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
    known = batch.offsets.log_offsets.get(source)
    if known is not None:
        missing = set(range(compacted + 1, known.least + 1)) - {before[path] for path in needed}
        if missing:
            later = [path for path, entry in entries.items() if _is_compact(path) and entry > last]
            message = f"source {source} has no entry {min(missing)} any more"
            if later:
                message += f"; it was compacted into {min(later)!r}, with later ones"
            raise CheckpointNotFoundError(message, f"sources/{source}")
    return needed


def _last_entry(source: str, batch: Batch) -> int:
    """Number of the last entry of a source's log that the batch knows, or may know."""
    known = batch.offsets.log_offsets.get(source)
    if known is None:
        return batch.batch_id
    # One too many does no harm: Spark reads it with the next batch.
    return known.last if known.least >= 0 else max(known.last, batch.batch_id)


def _entry(path: str) -> int | None:
    """Number of an entry of a source's log, or None if it is none."""
    _, _, rest = path.removeprefix("sources/").partition("/")
    rest = rest.removeprefix(_INITIAL_OFFSET)
    found = _NUMBER.fullmatch(rest) or _COMPACT.fullmatch(rest)
    return int(found[0].partition(".")[0]) if found else None


def _is_compact(path: str) -> bool:
    return path.endswith(".compact")


def _operators(listed: frozenset[str], batch_id: int) -> list[str]:
    """What is said of operators and of the schemas of their state."""
    found = []
    for path in listed:
        if not path.startswith("state/") or version_of(path) is not None or _PART.fullmatch(path):
            continue
        made_in = _batch_of(path)
        if made_in is None and "_metadata" not in path.split("/"):
            message = (
                f"state has {path!r}, which this version doesn't know how to copy or take back; it "
                "knows the state stores that Spark brings, in files of HDFS and in RocksDB"
            )
            raise InvalidRequestError(message)
        if made_in is None or made_in <= batch_id:
            found.append(path)
    return found


def _batch_of(path: str) -> int | None:
    """The batch that has written something about an operator, where the name says it."""
    found = _OPERATOR_BATCH.fullmatch(path) or _SCHEMA_BATCH.fullmatch(path)
    return int(found[1]) if found else None


def _state(
    listed: frozenset[str], versions: Mapping[str, list[Version]], batch: Batch
) -> list[Version]:
    partitions = int(batch.offsets.pinned.get(SHUFFLE_PARTITIONS, 0))
    stores: dict[str, dict[int, set[str]]] = defaultdict(dict)
    for path in listed:
        if path.startswith("state/"):
            of_operator = stores[path.split("/")[1]]
            partition_of = _PARTITION.fullmatch(path)
            if partition_of is not None and int(partition_of["partition"]) < partitions:
                of_operator.setdefault(int(partition_of["partition"]), set())
    needed = []
    for directory, found in versions.items():
        matched = _PARTITION.fullmatch(directory)
        if matched is None:
            continue
        is_current = any(one.version == batch.version and _is_valid(one, batch) for one in found)
        partition = int(matched["partition"])
        if partition >= partitions > 0 and not is_current:
            continue  # left over from before the state was spread over fewer partitions
        if batch.version > 0:
            needed += _chain(directory, found, batch)
        stores[matched["operator"]].setdefault(partition, set()).add(matched["rest"] or "")
    if batch.version > 0:
        for operator, by_partition in stores.items():
            _check_whole(operator, by_partition, partitions)
        _check_named(needed, batch)
    return needed


def _check_whole(operator: str, stores: Mapping[int, set[str]], partitions: int) -> None:
    """Refuse the state of an operator of which a whole partition, or one store of it, is gone."""
    where = f"state/{operator}"
    # What comes together, such as a total without a key, is in one partition whatever the setting.
    count = 1 if stores.keys() == {0} else partitions or max(stores, default=0) + 1
    missing = {one for one in range(count) if not stores.get(one)}
    if missing:
        message = f"all state of partition {min(missing)} is gone"
        raise CheckpointNotFoundError(message, where)
    names = set().union(*stores.values())
    for partition, found in sorted(stores.items()):
        if found != names:
            message = f"store {min(names - found)!r} of partition {partition} is gone"
            raise CheckpointNotFoundError(message, where)


def _check_named(needed: list[Version], batch: Batch) -> None:
    """Refuse it if a state is gone that the commit log names; that of format 1 names none."""
    there = {one.state_id for one in needed if one.version == batch.version}
    if missing := batch.state_ids(batch.version) - there:
        message = f"version {batch.version} of a state, {min(missing)}, is gone"
        raise CheckpointNotFoundError(message, "state")


def _is_valid(one: Version, batch: Batch) -> bool:
    if one.state_id is None:
        return True
    ids = batch.state_ids(one.version)
    return not ids or one.state_id in ids


def _chain(directory: str, found: list[Version], batch: Batch) -> list[Version]:
    """The newest whole state, and the changes since.

    Which attempt at a version counts is not known where Spark has deleted what says it. Then all are
    taken, and one whole state is only enough if each of them is one.
    """
    needed: list[Version] = []
    may_be_enough = False
    for version in range(batch.version, 0, -1):
        here = [one for one in found if one.version == version and _is_valid(one, batch)]
        kinds: dict[str | None, set[str]] = defaultdict(set)
        for one in here:
            if not one.is_checksum:
                kinds[one.state_id].add(one.kind)
        if not kinds:
            if may_be_enough:
                break  # Spark has deleted what is older, so it was
            message = f"version {version} of a state, which version {batch.version} builds on, is not there"
            raise CheckpointNotFoundError(message, directory)
        needed += here
        whole = [bool(of_attempt & _WHOLE) for of_attempt in kinds.values()]
        if all(whole):
            break
        may_be_enough |= any(whole)
    return needed
