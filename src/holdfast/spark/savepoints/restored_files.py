"""Files of a savepoint in a checkpointLocation, where Spark finds them as its own."""

from collections.abc import Mapping
from functools import partial

from holdfast.common import chunks, map_in_parallel, uripath
from holdfast.errors import CheckpointConflictError, InvalidRequestError
from holdfast.locations.file_systems import file_system_for
from holdfast.redaction import redact
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
from holdfast.spark.savepoints.change_notes import Attempt, check_newest, is_attempt
from holdfast.spark_progress import SparkFile, SparkFiles


def clear(location: str, attempt: Attempt) -> None:
    """Delete the leftovers of earlier attempts.

    Raises:
        CheckpointConflictError: Another attempt has begun since.
    """
    leftovers = [f"{location}/{path}" for path in tree(location) if not _is_note(path)]
    check_newest(location, attempt)
    delete(leftovers)


def write_spark_files(spark_files: SparkFiles, location: str, moves: Moves) -> dict[str, int]:
    """Write all files but `metadata`; logs last, as Spark itself writes them.

    Returns:
        Length in bytes of each file, by its path.

    Raises:
        InvalidRequestError: No path begins with an old path of `moves`.
    """
    files = [file for file in spark_files.files if file.path != METADATA]
    for directory in sorted({uripath.parent(uripath.join(location, file.path)) for file in files}):
        file_system_for(directory).prepare_directory(directory)
    write_file = partial(_write_file, location=location, moves=moves)
    sizes = map_in_parallel(write_file, [file for file in files if not _is_log(file)])
    if moves.unused:
        message = (
            "no input file of the savepoint begins with "
            f"{[redact(path) for path in moves.unused]}, of paths; repeat it with the beginning of their URIs"
        )
        raise InvalidRequestError(message, location)
    sizes += map_in_parallel(write_file, [file for file in files if _is_log(file)])
    return dict(sizes)


def check_files(location: str, sizes: Mapping[str, int]) -> None:
    """Refuse to continue unless exactly these files are there: another process may delete or write files.

    Args:
        location: The checkpointLocation.
        sizes: Length in bytes of each file that was written, by its path.

    Raises:
        CheckpointConflictError: A file is missing, differs, or was added.
    """
    present = {
        path: size
        for path, size in tree(location).items()
        if not (_is_note(path) or is_hidden(path))
    }
    wrong = sorted(path for path, _ in present.items() ^ sizes.items())
    if wrong:
        message = (
            f"{wrong[0]!r} is not as it was restored: another process is changing this directory; "
            "repeat the restore once it has stopped"
        )
        raise CheckpointConflictError(message, location, kind="contended")


def _is_note(path: str) -> bool:
    return path in (UNFINISHED_FILE, METADATA) or is_attempt(path)


def _is_log(file: SparkFile) -> bool:
    return file.path.startswith(("offsets/", "commits/"))


def _write_file(file: SparkFile, *, location: str, moves: Moves) -> tuple[str, int]:
    """Write a file; return its path and length."""
    uri = f"{location}/{file.path}"
    if not has_paths(file.path, sources=bool(moves.paths)):
        write_stream(file.handle, uri)
        return file.path, file.handle.size
    with file.handle.open_input_stream() as stream:
        content = b"".join(chunks(stream))
    content = rewrite_paths(file.path, content, checkpoint_location=location, moves=moves)
    write(uri, content)
    return file.path, len(content)
