"""Which files of state a query needs: of each store a whole state, and the changes since. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from holdfast.errors import CheckpointNotFoundError
from holdfast.spark.checkpoint_location.file_names import StateFile, partition_path, state_files
from holdfast.spark.checkpoint_location.logs import SHUFFLE_PARTITIONS, LoggedBatch

_WHOLE = {"snapshot", "zip"}


def selected_state(listed: Iterable[str], batch: LoggedBatch) -> list[str]:
    """Files of state that a query needs to go on behind a batch, but for parts of zips.

    Args:
        listed: All files of a checkpointLocation that are not hidden, relative to it.
        batch: The batch.

    Raises:
        CheckpointNotFoundError: Some state is gone.
    """
    partitions = int(batch.offsets.pinned.get(SHUFFLE_PARTITIONS, 0))
    stores: dict[str, dict[int, set[str]]] = defaultdict(dict)
    for path in listed:
        if path.startswith("state/"):
            of_operator = stores[path.split("/")[1]]
            place = partition_path(path)
            if place is not None and place.partition < partitions:
                of_operator.setdefault(place.partition, set())
    needed: list[StateFile] = []
    for directory, files in state_files(sorted(listed)).items():
        place = partition_path(directory)
        if place is None:
            continue
        is_current = any(file.version == batch.version and _counts(file, batch) for file in files)
        if place.partition >= partitions > 0 and not is_current:
            continue  # left over from before the state was spread over fewer partitions
        if batch.version > 0:
            needed += _chain(directory, files, batch)
        stores[place.operator].setdefault(place.partition, set()).add(place.rest)
    if batch.version > 0:
        for operator, by_partition in stores.items():
            _check_whole(operator, by_partition, partitions)
        _check_named(needed, batch)
    return [file.path for file in needed]


def _check_whole(operator: str, stores: Mapping[int, set[str]], partitions: int) -> None:
    """Refuse the state of an operator of which a whole partition, or a store of it, is gone."""
    where = f"state/{operator}"
    # What comes together, such as a total without a key, is in one partition whatever the setting.
    count = 1 if stores.keys() == {0} else partitions or max(stores, default=0) + 1
    missing = {partition for partition in range(count) if not stores.get(partition)}
    if missing:
        message = f"all state of partition {min(missing)} is gone"
        raise CheckpointNotFoundError(message, where)
    names = set().union(*stores.values())
    for partition, there in sorted(stores.items()):
        if there != names:
            message = f"store {min(names - there)!r} of partition {partition} is gone"
            raise CheckpointNotFoundError(message, where)


def _check_named(needed: list[StateFile], batch: LoggedBatch) -> None:
    """Refuse to go on if a state is gone that the commit log names; format 1 names none."""
    there = {file.state_id for file in needed if file.version == batch.version}
    if missing := batch.state_ids(batch.version) - there:
        message = f"version {batch.version} of a state, {min(missing)}, is gone"
        raise CheckpointNotFoundError(message, "state")


def _counts(file: StateFile, batch: LoggedBatch) -> bool:
    """Whether a file is of an attempt that counts, as far as the commit log says."""
    if file.state_id is None:
        return True
    ids = batch.state_ids(file.version)
    return not ids or file.state_id in ids


def _chain(directory: str, files: list[StateFile], batch: LoggedBatch) -> list[StateFile]:
    """The newest whole state of a store, and the changes since.

    Which attempt at a version counts is not known where Spark has deleted what says it. Then the files
    of all attempts are needed, and a version ends the chain only if each attempt at it is a whole state.
    """
    needed: list[StateFile] = []
    may_be_enough = False
    for version in range(batch.version, 0, -1):
        here = [file for file in files if file.version == version and _counts(file, batch)]
        kinds: dict[str | None, set[str]] = defaultdict(set)
        for file in here:
            if not file.is_checksum:
                kinds[file.state_id].add(file.kind)
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
