"""The operators' part of a restore: the first checkpoint of a new job."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike
from typing import Self

import msgspec

from holdfast.common import checkpoint_directory
from holdfast.errors import InvalidRequestError
from holdfast.locations.coordination import (
    complete_checkpoint,
    copy_files,
    copy_stream,
    dispose_on_error,
    load_checkpoints,
)
from holdfast.locations.handles import FileStateHandle, StreamStateHandle, files_of
from holdfast.locations.metadata import CheckpointMetadata
from holdfast.locations.storages import (
    CheckpointedStateScope,
    CheckpointStorageAccess,
    CompletedCheckpoint,
)
from holdfast.spark.checkpoint_location import Link
from holdfast.spark.savepoints.change_notes import Change
from holdfast.spark.savepoints.stored_query import use_stores
from holdfast.spark.settings import PREFIX, Settings
from holdfast.spark_progress import SPARK, SPARK_FILES, progress_of


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
            raise InvalidRequestError(message)
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
                raise InvalidRequestError(message, checkpoint.location.external_pointer)
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
            return copy_stream(file.open_input_stream, pending, scope=scope)

        with dispose_on_error(pending):
            copied, _ = copy_files(savepoint.metadata, copy)
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
                coordinator_states=_without_spark_files(savepoint.metadata)
                | {SPARK: msgspec.msgpack.encode(progress)},
            )
            complete_checkpoint(pending, metadata, ownership)


def _without_spark_files(metadata: CheckpointMetadata) -> dict[str, bytes]:
    return {
        name: state for name, state in metadata.coordinator_states.items() if name != SPARK_FILES
    }
