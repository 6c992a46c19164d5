"""Where the files of a checkpoint may be. Pure, no I/O.

`_metadata` names files, and retention, claims, copies and restores follow these names. So a name that leads to
anything but a state file is damage, even if all checksums are right:

- a file in the directory of `_metadata` is part of the checkpoint;
- any other one has the random name of a state file;
- a checkpoint `<job>/chk-<N>` has it in `<job>/shared` or in a `<job>/chk-<M>`, or it came with a checkpoint that
  the job has claimed. What comes before `<job>` may differ: files can be spread, and a store can be reached
  under several schemes and paths;
- what came with a claimed checkpoint is in the directory of that, or in the `shared` next to it.

Files are deleted only by stricter rules: of a checkpoint in its own job's directory, spelled as the job spells
it, and of a claim in the claimed one.
"""

from holdfast.common import uripath
from holdfast.locations.handles import FileStateHandle, is_inside
from holdfast.locations.metadata import CheckpointMetadata
from holdfast.locations.storages.contract import CHECKPOINT, SHARED, STATE_FILE
from holdfast.locations.storages.entropy import lies_in


def find_stray_file(metadata: CheckpointMetadata, directory: str) -> str | None:
    """Return the first URI in metadata that can't be that of a file of its checkpoint; None if there is none.

    Args:
        metadata: The metadata, with absolute URIs.
        directory: The directory that it is in, or is going to be.
    """
    claimed: set[str] = set()
    for claim in metadata.claimed:
        if not _is_checkpoint_directory(claim.pointer):
            return claim.pointer
        for uri in claim.files:
            if not belongs_to(uri, claim.pointer):
                return uri
        claimed.update(claim.files)
    for stream in metadata.streams():
        if (
            isinstance(stream, FileStateHandle)
            and not is_inside(stream, directory)
            and stream.uri not in claimed
            and not (is_state_file(stream.uri) and _is_of_job(stream.uri, metadata, directory))
        ):
            return stream.uri
    return None


def belongs_to(uri: str, pointer: str) -> bool:
    """Whether a state file goes with a checkpoint or savepoint when a job claims that.

    Args:
        uri: The file.
        pointer: The directory of the checkpoint or savepoint.
    """
    return is_state_file(uri) and (
        lies_in(uri, pointer)
        or (
            CHECKPOINT.fullmatch(uripath.name(pointer)) is not None
            and lies_in(uri, uripath.join(uripath.parent(pointer), SHARED))
        )
    )


def is_state_file(uri: str) -> bool:
    """Whether a URI can be that of a state file, by its form and name."""
    return STATE_FILE.fullmatch(uripath.name(uri)) is not None and uripath.is_normalized(uri)


def _is_checkpoint_directory(pointer: str) -> bool:
    return uripath.is_normalized(pointer) and uripath.local_path(pointer) != "/"


def _is_of_job(uri: str, metadata: CheckpointMetadata, directory: str) -> bool:
    """Whether a file is where the checkpoint's job has files; savepoints refer to others anywhere."""
    if CHECKPOINT.fullmatch(uripath.name(directory)) is None:
        return True
    holder = uripath.parent(uri)
    place, job = uripath.name(holder), uripath.name(uripath.parent(holder))
    return job == metadata.job_id and (place == SHARED or CHECKPOINT.fullmatch(place) is not None)
