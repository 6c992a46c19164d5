"""The parts of a restored query: Spark's files in its checkpointLocation, and the first checkpoint of its job."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Self

import msgspec

from holdfast.common import checkpoint_directory, chunks, map_in_parallel, uripath
from holdfast.errors import CheckpointConflictError, InvalidRequestError
from holdfast.locations.coordination import (
    complete_checkpoint,
    copy_file,
    copy_files,
    dispose_on_error,
    load_checkpoints,
)
from holdfast.locations.file_systems import file_system_for
from holdfast.locations.handles import FileStateHandle, StreamStateHandle, files_of
from holdfast.locations.metadata import CheckpointMetadata
from holdfast.locations.storages import (
    CheckpointedStateScope,
    CheckpointStorageAccess,
    CompletedCheckpoint,
)
from holdfast.redaction import redact
from holdfast.spark.checkpoint_location import (
    METADATA,
    UNFINISHED_FILE,
    Link,
    Moves,
    delete,
    has_paths,
    is_hidden,
    rewrite_paths,
    tree,
    write,
    write_stream,
)
from holdfast.spark.savepoints.change_notes import Attempt, Change, check_newest, is_attempt
from holdfast.spark.savepoints.stored_query import use_stores
from holdfast.spark.settings import PREFIX, Settings
from holdfast.spark_progress import SPARK, SPARK_FILES, SparkFile, SparkFiles, progress_of


def clear(location: str, attempt: Attempt) -> None:
    """Delete the leftovers of earlier attempts. Raises `CheckpointConflictError` if another has begun since."""
    leftovers = [f"{location}/{path}" for path in tree(location) if not _is_note(path)]
    check_newest(location, attempt)
    delete(leftovers)


def write_spark_files(spark_files: SparkFiles, location: str, moves: Moves) -> dict[str, int]:
    """Write all files but `metadata`; logs last, as Spark itself writes them.

    Returns:
        Length in bytes of each file, by its path.
    """
    files = [file for file in spark_files.files if file.path != METADATA]
    for directory in sorted({uripath.parent(uripath.join(location, file.path)) for file in files}):
        file_system_for(directory).prepare_directory(directory)
    write_file = partial(_write_file, location=location, moves=moves)
    sizes = map_in_parallel(write_file, [file for file in files if not _is_log(file)])
    sizes += map_in_parallel(write_file, [file for file in files if _is_log(file)])
    return dict(sizes)


def check_moves(spark_files: SparkFiles, location: str, moves: Moves) -> None:
    """Refuse moves with an old path that no input file begins with. Raises `InvalidRequestError`."""
    if moves.paths:
        files = [file for file in spark_files.files if has_paths(file.path, sources=True)]
        map_in_parallel(partial(_rewritten, location=location, moves=moves), files)
    if moves.unused:
        message = (
            "no input file of the savepoint begins with "
            f"{[redact(path) for path in moves.unused]}, of paths; repeat it with the beginning of their URIs"
        )
        raise InvalidRequestError(message, location)


def check_files(location: str, sizes: Mapping[str, int]) -> None:
    """Refuse to continue unless exactly the files of these sizes are there: another process may delete or write files.

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
            f"{wrong[0]!r} was changed during the restore: another process is writing to this directory; "
            "stop it, then repeat the restore"
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
    content = _rewritten(file, location=location, moves=moves)
    write(uri, content)
    return file.path, len(content)


def _rewritten(file: SparkFile, *, location: str, moves: Moves) -> bytes:
    """Return the content of a file, with new paths."""
    with file.handle.open_input_stream() as stream:
        content = b"".join(chunks(stream))
    return rewrite_paths(file.path, content, checkpoint_location=location, moves=moves)


@dataclass(frozen=True, slots=True)
class RestoredJob:
    """The new job of a restored query's operators."""

    access: CheckpointStorageAccess
    link: Link

    @classmethod
    def of(
        cls,
        metadata: CheckpointMetadata,
        configuration: dict[str, str],
        checkpoint_dir: str | PathLike[str] | None,
        job_id: str,
    ) -> Self | None:
        """Return the job for the operators of a savepoint; None without operators.

        Raises:
            InvalidRequestError: No directory is set, or it can't be used.
        """
        if not metadata.operators:
            return None
        settings = Settings.parse(configuration)
        if checkpoint_dir is not None:
            directory = checkpoint_directory(checkpoint_dir)
            settings = dataclasses.replace(settings, checkpoint_dir=directory)
        if settings.checkpoint_dir is None:
            message = (
                "savepoint holds the state of operators; set the directory for their checkpoints "
                f"(checkpoint_dir, or {PREFIX}checkpoint.dir)"
            )
            raise InvalidRequestError(message, kind="setting")
        use_stores(configuration, settings.checkpoint_dir)
        link = Link(
            checkpoint_dir=settings.checkpoint_dir,
            job_id=job_id,
            storage=settings.checkpoint_storage,
        )
        return cls(settings.open_storage().create_checkpoint_storage(job_id), link)

    @property
    def job_id(self) -> str:
        return self.link.job_id

    @property
    def settings(self) -> dict[str, str]:
        """Settings that lead the query to its job's checkpoints."""
        return {
            f"{PREFIX}checkpoint.dir": str(self.link.checkpoint_dir),
            f"{PREFIX}job.id": self.job_id,  # a session may have the id of another job
        }

    def is_restored(self, restore: Change) -> bool:
        """Return whether the savepoint's state is the job's checkpoint already.

        Raises:
            InvalidRequestError: The job has checkpoints of another origin.
        """
        return self._has_checkpoint(load_checkpoints(self.access), restore)

    def _has_checkpoint(self, checkpoints: Iterable[CompletedCheckpoint], restore: Change) -> bool:
        own = list(checkpoints)
        for checkpoint in own:
            if checkpoint.metadata.commit_token != restore.note.token:
                message = (
                    f"job {self.job_id} has checkpoints already; pass another job or directory, "
                    "delete that of the job if it is not needed, or roll the job back with roll_back"
                )
                raise InvalidRequestError(
                    message, checkpoint.location.external_pointer, kind="not-empty"
                )
        return bool(own)

    def restore(self, savepoint: CompletedCheckpoint, restore: Change) -> None:
        """Make the savepoint's state the job's first checkpoint, unless it is already."""
        if self.is_restored(restore):
            return
        self.access.initialize_base_locations_for_checkpoint()
        ownership = self.access.claim_job()
        if self._has_checkpoint(ownership.completed.values(), restore):
            return  # by another process with the same restore
        pending = self.access.initialize_location_for_checkpoint(savepoint.checkpoint_id)
        shared = {file.uri for file in files_of(savepoint.metadata.shared_streams())}

        def copy(file: FileStateHandle) -> StreamStateHandle:
            # Later checkpoints of the query keep referring to shared files.
            is_shared = file.uri in shared
            scope = CheckpointedStateScope.SHARED if is_shared else CheckpointedStateScope.EXCLUSIVE
            return copy_file(file, pending, scope=scope)

        with dispose_on_error(pending):
            copied, _ = copy_files(savepoint.metadata, copy)
            states = dict(savepoint.metadata.coordinator_states)
            states.pop(SPARK_FILES)
            progress = msgspec.structs.replace(
                progress_of(savepoint.metadata),
                query_id=restore.note.query_id,
                checkpoint_location=restore.location,
            )
            metadata = msgspec.structs.replace(
                copied,
                job_id=self.job_id,
                commit_token=restore.note.token,
                epoch=ownership.epoch,
                coordinator_states=states | {SPARK: msgspec.msgpack.encode(progress)},
            )
            complete_checkpoint(pending, metadata, ownership)
