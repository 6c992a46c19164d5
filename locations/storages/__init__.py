"""Where checkpoints go: storages, locations, and the streams into them.

`contract` draws the whole protocol; `file_system_storage` and `memory_storage` do it, over any file system.
The commit is `file_system_streams.CheckpointMetadataOutputStream.close_and_finalize_checkpoint`; who owns a job
is settled in `ownership`. Start with `contract`.
"""

from holdfast.locations.storages.contract import (
    CHECKPOINT,
    JOB_ID,
    METADATA_FILE,
    SAVEPOINT_NAME,
    SHARED,
    STATE_FILE,
    AdoptingOutputStream,
    CheckpointedStateScope,
    CheckpointMetadataOutputStream,
    CheckpointStateOutputStream,
    CheckpointStorage,
    CheckpointStorageAccess,
    CheckpointStorageCoordinatorView,
    CheckpointStorageLocation,
    CheckpointStorageLocationReference,
    CheckpointStorageWorkerView,
    CheckpointStreamFactory,
    CompletedCheckpoint,
    CompletedCheckpointStorageLocation,
    JobOwnership,
    check_job_id,
)
from holdfast.locations.storages.discarded_unless_kept import DiscardedUnlessKept
from holdfast.locations.storages.entropy import (
    common_directory,
    has_marker,
    lies_in,
    spread_everywhere,
    without_marker,
)
from holdfast.locations.storages.file_system_completed import metadata_among, metadata_at
from holdfast.locations.storages.file_system_storage import (
    INLINE_THRESHOLD_BYTES,
    MAX_INLINE_THRESHOLD_BYTES,
    FileSystemCheckpointStorage,
    FileSystemCheckpointStorageAccess,
    FileSystemCheckpointStorageLocation,
    FileSystemCheckpointStreamFactory,
    checkpoint_storage,
)
from holdfast.locations.storages.job_directory import (
    JobDirectory,
    savepoint_base,
    savepoints_in,
)
from holdfast.locations.storages.listings import list_all, list_each
from holdfast.locations.storages.loading import load_checkpoint, misplaced
from holdfast.locations.storages.memory_storage import MemoryCheckpointStorage
from holdfast.locations.storages.ownership import EPOCHS, newest_epoch
from holdfast.locations.storages.places import belongs_to, find_stray_file, is_state_file
from holdfast.locations.storages.pointers import NOT_EXTERNALLY_ADDRESSABLE, resolve_pointer

__all__ = [
    "CHECKPOINT",
    "EPOCHS",
    "INLINE_THRESHOLD_BYTES",
    "JOB_ID",
    "MAX_INLINE_THRESHOLD_BYTES",
    "METADATA_FILE",
    "NOT_EXTERNALLY_ADDRESSABLE",
    "SAVEPOINT_NAME",
    "SHARED",
    "STATE_FILE",
    "AdoptingOutputStream",
    "CheckpointMetadataOutputStream",
    "CheckpointStateOutputStream",
    "CheckpointStorage",
    "CheckpointStorageAccess",
    "CheckpointStorageCoordinatorView",
    "CheckpointStorageLocation",
    "CheckpointStorageLocationReference",
    "CheckpointStorageWorkerView",
    "CheckpointStreamFactory",
    "CheckpointedStateScope",
    "CompletedCheckpoint",
    "CompletedCheckpointStorageLocation",
    "DiscardedUnlessKept",
    "FileSystemCheckpointStorage",
    "FileSystemCheckpointStorageAccess",
    "FileSystemCheckpointStorageLocation",
    "FileSystemCheckpointStreamFactory",
    "JobDirectory",
    "JobOwnership",
    "MemoryCheckpointStorage",
    "belongs_to",
    "check_job_id",
    "checkpoint_storage",
    "common_directory",
    "find_stray_file",
    "has_marker",
    "is_state_file",
    "lies_in",
    "list_all",
    "list_each",
    "load_checkpoint",
    "metadata_among",
    "metadata_at",
    "misplaced",
    "newest_epoch",
    "resolve_pointer",
    "savepoint_base",
    "savepoints_in",
    "spread_everywhere",
    "without_marker",
]
