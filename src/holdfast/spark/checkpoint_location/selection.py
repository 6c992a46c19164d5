"""The files of a checkpointLocation from which a query can resume after a batch. Pure.

`file_names` draws the directory. Of `offsets` and `commits` two entries are needed: Spark also reads the one
before. Of each state store the newest whole state and the later changes are needed. A file with an unknown name
is refused: it can't be rolled back, and the query may need it.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from holdfast.errors import CheckpointNotFoundError, InvalidRequestError
from holdfast.spark.checkpoint_location.file_names import (
    StateFile,
    is_compact,
    is_hidden,
    is_part_of_zip,
    log_entry,
    partition_path,
    source_entry,
    state_file,
    state_files,
    writing_batch,
)
from holdfast.spark.checkpoint_location.files import (
    APPLICATION_FILE,
    LINK_FILE,
    METADATA,
    UNFINISHED_FILE,
)
from holdfast.spark.checkpoint_location.logs import SHUFFLE_PARTITIONS, LoggedBatch

_HOLDFAST_FILES = {LINK_FILE, APPLICATION_FILE, UNFINISHED_FILE}
_TOP = {METADATA, *_HOLDFAST_FILES, "offsets", "commits", "sources", "state"}
_WHOLE = {"snapshot", "zip"}


def select(paths: Collection[str], batch: LoggedBatch) -> list[str]:
    """Select the files that are needed, without the parts of zips.

    Args:
        paths: All files of a checkpointLocation, relative to it.
        batch: The batch after which the query resumes.

    Raises:
        CheckpointNotFoundError: A file is missing: Spark deletes old ones while it runs.
        InvalidRequestError: A file is unknown.
    """
    listed = frozenset(path for path in paths if not is_hidden(path))
    for path in sorted(listed):
        if path.partition("/")[0] not in _TOP:
            raise InvalidRequestError(
                f"can't copy or roll back {path!r} in the checkpointLocation: it is not a file of Spark that this "
                "version knows",
                kind="not-copyable",
            )
    return sorted(
        [
            *_select_log_entries(listed, batch),
            *_select_source_entries(listed, batch),
            *_select_operators(listed, batch.batch_id),
            *_select_state(listed, batch),
        ]
    )


def files_after(paths: Iterable[str], batch: LoggedBatch) -> list[str]:
    """Return all files of a checkpointLocation that were written only for batches after the given one."""
    return sorted(path for path in paths if not is_hidden(path) and _is_after(path, batch))


def _is_after(path: str, batch: LoggedBatch) -> bool:
    for log in ("offsets", "commits"):
        if (number := log_entry(path, log)) is not None:
            return number > batch.batch_id
    if path.startswith("sources/") and (entry := source_entry(path)) is not None:
        return entry > _last_entry(path.split("/")[1], batch)
    if (writer := writing_batch(path)) is not None:
        return writer > batch.batch_id
    file = state_file(path)
    return file is not None and file.version > batch.batch_id + 1


def _select_log_entries(listed: frozenset[str], batch: LoggedBatch) -> list[str]:
    batches = [number for number in (batch.batch_id - 1, batch.batch_id) if number >= 0]
    committed = batches if batch.is_committed else batches[:-1]
    needed = [f"offsets/{number}" for number in batches]
    needed += [f"commits/{number}" for number in committed]
    for path in needed:
        if path not in listed:
            raise CheckpointNotFoundError("Spark's checkpointLocation lacks a file", path)
    return [METADATA, *needed]


def _select_operators(listed: frozenset[str], batch_id: int) -> list[str]:
    """Select the files about operators and the schemas of their state."""
    selected = []
    for path in listed:
        if not path.startswith("state/") or state_file(path) is not None or is_part_of_zip(path):
            continue
        writer = writing_batch(path)
        if writer is None and "_metadata" not in path.split("/"):
            raise InvalidRequestError(
                f"can't copy or roll back {path!r} in Spark's state: this version knows only the state "
                "stores that Spark brings, in files of HDFS and in RocksDB",
                kind="not-copyable",
            )
        if writer is None or writer <= batch_id:
            selected.append(path)
    return selected


def _select_source_entries(listed: frozenset[str], batch: LoggedBatch) -> list[str]:
    logs: dict[str, list[str]] = defaultdict(list)
    for path in listed:
        if path.startswith("sources/"):
            if source_entry(path) is None:
                raise InvalidRequestError(
                    f"can't copy {path!r} of a source: this version knows only logs such as those of "
                    "files, Kafka and Iceberg",
                    kind="not-copyable",
                )
            logs[path.split("/")[1]].append(path)
    for source, offset in batch.offsets.log_offsets.items():
        if offset.is_certain and source not in logs:
            message = (
                f"the log of source {source} is gone, and without it all files would be read again; "
                "restore its directory"
            )
            raise CheckpointNotFoundError(message, f"sources/{source}")
    return [path for source in logs for path in _select_entries(source, logs[source], batch)]


def _last_entry(source: str, batch: LoggedBatch) -> int:
    """Return the number of the last entry of a source's log that belongs, or may belong, to the batch."""
    offset = batch.offsets.log_offsets.get(source)
    if offset is None:
        return batch.batch_id
    # An entry too many does no harm: Spark reads it with the next batch.
    return offset.max_last if offset.min_last >= 0 else max(offset.max_last, batch.batch_id)


def _select_entries(source: str, paths: list[str], batch: LoggedBatch) -> list[str]:
    last = _last_entry(source, batch)
    entries = {path: entry for path in paths if (entry := source_entry(path)) is not None}
    before = {path: entry for path, entry in entries.items() if entry <= last}
    compacted = max((entry for path, entry in before.items() if is_compact(path)), default=-1)
    needed = [
        path
        for path, entry in before.items()
        if (entry == compacted if is_compact(path) else entry > compacted)
    ]
    offset = batch.offsets.log_offsets.get(source)
    if offset is not None:
        missing = set(range(compacted + 1, offset.min_last + 1)) - {before[path] for path in needed}
        if missing:
            later = [path for path, entry in entries.items() if is_compact(path) and entry > last]
            message = f"entry {min(missing)} of source {source} is gone"
            if later:
                message += f"; it was compacted into {min(later)!r}, with later ones"
            raise CheckpointNotFoundError(message, f"sources/{source}")
    return needed


def _select_state(listed: Iterable[str], batch: LoggedBatch) -> list[str]:
    partitions = int(batch.offsets.pinned.get(SHUFFLE_PARTITIONS, 0))
    stores: dict[str, dict[int, set[str]]] = defaultdict(dict)
    for path in listed:
        if path.startswith("state/"):
            operator = stores[path.split("/")[1]]
            place = partition_path(path)
            if place is not None and place.partition < partitions:
                operator.setdefault(place.partition, set())
    needed: list[StateFile] = []
    for directory, files in state_files(sorted(listed)).items():
        place = partition_path(directory)
        if place is None:
            continue
        is_current = any(
            file.version == batch.version and _may_be_committed(file, batch) for file in files
        )
        if place.partition >= partitions > 0 and not is_current:
            continue  # left over from before the state was repartitioned
        if batch.version > 0:
            needed += _select_chain(directory, files, batch)
        stores[place.operator].setdefault(place.partition, set()).add(place.rest)
    if batch.version > 0:
        for name, by_partition in stores.items():
            _check_whole(name, by_partition, partitions)
        _check_committed(needed, batch)
    return [file.path for file in needed]


def _check_whole(operator: str, stores: Mapping[int, set[str]], partitions: int) -> None:
    """Refuse the state of an operator if a whole partition, or one of its stores, is gone."""
    directory = f"state/{operator}"
    # State without a key, such as a grand total, is in one partition regardless of the setting.
    count = 1 if stores.keys() == {0} else partitions or max(stores, default=0) + 1
    missing = {partition for partition in range(count) if not stores.get(partition)}
    if missing:
        message = f"all state of partition {min(missing)} is gone"
        raise CheckpointNotFoundError(message, directory)
    names = set().union(*stores.values())
    for partition, existing in sorted(stores.items()):
        if existing != names:
            message = f"store {min(names - existing)!r} of partition {partition} is gone"
            raise CheckpointNotFoundError(message, directory)


def _check_committed(needed: list[StateFile], batch: LoggedBatch) -> None:
    """Refuse to resume if a state in the commit log is gone; format 1 has no ids there."""
    existing = {file.state_id for file in needed if file.version == batch.version}
    if missing := batch.state_ids(batch.version) - existing:
        message = f"version {batch.version} of a state, {min(missing)}, is gone"
        raise CheckpointNotFoundError(message, "state")


def _may_be_committed(file: StateFile, batch: LoggedBatch) -> bool:
    """Return whether a file is of a committed attempt, as far as the commit log is available."""
    if file.state_id is None:
        return True
    ids = batch.state_ids(file.version)
    return not ids or file.state_id in ids


def _select_chain(directory: str, files: list[StateFile], batch: LoggedBatch) -> list[StateFile]:
    """Select the newest whole state of a store, and the later changes.

    The committed attempt at a version is unknown if Spark has deleted its entry of the commit log. Then the files
    of all attempts are needed, and a version ends the chain only if each attempt at it is a whole state.
    """
    needed: list[StateFile] = []
    may_end_here = False
    for version in range(batch.version, 0, -1):
        here = [
            file for file in files if file.version == version and _may_be_committed(file, batch)
        ]
        kinds: dict[str | None, set[str]] = defaultdict(set)
        for file in here:
            if not file.is_checksum:
                kinds[file.state_id].add(file.kind)
        if not kinds:
            if may_end_here:
                break  # Spark has deleted older files, so the chain did end
            message = f"version {version} of a state is gone, and version {batch.version} needs it"
            raise CheckpointNotFoundError(message, directory)
        needed += here
        is_whole = [bool(attempt & _WHOLE) for attempt in kinds.values()]
        if all(is_whole):
            break
        may_end_here |= any(is_whole)
    return needed
