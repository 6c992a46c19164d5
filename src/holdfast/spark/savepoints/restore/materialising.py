"""Writes the files of a savepoint into a checkpointLocation, so that Spark finds them as its own."""

from collections.abc import Mapping
from functools import partial

from holdfast.common import map_in_parallel, uripath
from holdfast.errors import CheckpointConflictError, InvalidRequestError
from holdfast.locations.coordination import chunks
from holdfast.locations.file_systems import file_system_for
from holdfast.redaction import shown
from holdfast.spark.checkpoint_location import (
    METADATA,
    UNFINISHED_FILE,
    Moves,
    delete,
    has_paths,
    is_hidden,
    rewrite_paths,
    tree,
    write,
    write_stream,
)
from holdfast.spark.savepoints.notes import Attempt, check_newest, is_attempt
from holdfast.spark_progress import SparkFile, SparkFiles


def clear(location: str, attempt: Attempt) -> None:
    """Delete what former attempts have left.

    Raises:
        CheckpointConflictError: Somebody has begun anew since this attempt.
    """
    left = [f"{location}/{path}" for path in tree(location) if not _is_note(path)]
    check_newest(location, attempt)
    delete(left)


def materialise(spark_files: SparkFiles, location: str, moves: Moves) -> dict[str, int]:
    """Write all files but `metadata`; logs come last, as Spark itself writes them.

    Returns:
        Length in bytes of each file, by its path.

    Raises:
        InvalidRequestError: Nothing begins with a path that is to be changed.
    """
    files = [file for file in spark_files.files if file.path != METADATA]
    for directory in sorted({uripath.parent(uripath.join(location, file.path)) for file in files}):
        file_system_for(directory).prepare_directory(directory)
    write_file = partial(_write, location=location, moves=moves)
    sizes = map_in_parallel(write_file, [file for file in files if not _is_log(file)])
    if moves.unused:
        message = (
            "no input file that the savepoint knows begins with "
            f"{[shown(path) for path in moves.unused]}, of paths; repeat it with what they begin with"
        )
        raise InvalidRequestError(message, location)
    sizes += map_in_parallel(write_file, [file for file in files if _is_log(file)])
    return dict(sizes)


def check_whole(location: str, sizes: Mapping[str, int]) -> None:
    """Refuse to go on unless just these files are there: other processes may clear them away, or write more.

    Args:
        location: The checkpointLocation.
        sizes: Length in bytes of each file that was written, by its path.

    Raises:
        CheckpointConflictError: Something is missing, differs, or is there besides.
    """
    there = {
        path: size
        for path, size in tree(location).items()
        if not (_is_note(path) or is_hidden(path))
    }
    wrong = sorted(path for path, _ in there.items() ^ sizes.items())
    if wrong:
        message = (
            f"{wrong[0]!r} is not there as it was restored: somebody else changes this directory too; "
            "repeat the restore once nobody does"
        )
        raise CheckpointConflictError(message, location, kind="contended")


def _is_note(path: str) -> bool:
    """Whether a file says what is being done here, and is no part of it."""
    return path in (UNFINISHED_FILE, METADATA) or is_attempt(path)


def _is_log(file: SparkFile) -> bool:
    return file.path.startswith(("offsets/", "commits/"))


def _write(file: SparkFile, *, location: str, moves: Moves) -> tuple[str, int]:
    """Write a file; its path and length."""
    uri = f"{location}/{file.path}"
    if not has_paths(file.path, sources=bool(moves.paths)):
        write_stream(file.handle, uri)
        return file.path, file.handle.size
    with file.handle.open_input_stream() as stream:
        content = b"".join(chunks(stream))
    content = rewrite_paths(file.path, content, checkpoint_location=location, moves=moves)
    write(uri, content)
    return file.path, len(content)
