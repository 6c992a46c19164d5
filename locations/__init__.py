"""Checkpoints in storage: open a storage, and find, copy, verify and sweep checkpoints.

Authors of file systems and storages use `holdfast.locations.adapters`.
"""

if __name__ == "locations":  # reached through the repository root: a second copy of every class
    raise ImportError("import holdfast.locations, not locations")

from holdfast.locations.coordination import (
    CheckpointSize,
    FoundCheckpoint,
    IncompleteCheckpoint,
    JobHistory,
    SweepReport,
    UnreadableCheckpoint,
    VerifiedFile,
    complete_checkpoint,
    copy_checkpoint,
    find_checkpoint,
    find_checkpoints,
    job_histories,
    latest_checkpoint,
    size_of,
    sweep,
    verify,
)
from holdfast.locations.file_systems import S3Settings, use_hdfs, use_s3
from holdfast.locations.metadata import (
    CheckpointMetadata,
    StoredOperator,
    StoredSubtask,
    SubtaskStatistics,
)
from holdfast.locations.storages import (
    CheckpointStorage,
    CheckpointStorageAccess,
    CheckpointStorageLocation,
    CompletedCheckpoint,
    CompletedCheckpointStorageLocation,
    FileSystemCheckpointStorage,
    JobOwnership,
    MemoryCheckpointStorage,
    checkpoint_storage,
    load_checkpoint,
)

__all__ = [
    "CheckpointMetadata",
    "CheckpointSize",
    "CheckpointStorage",
    "CheckpointStorageAccess",
    "CheckpointStorageLocation",
    "CompletedCheckpoint",
    "CompletedCheckpointStorageLocation",
    "FileSystemCheckpointStorage",
    "FoundCheckpoint",
    "IncompleteCheckpoint",
    "JobHistory",
    "JobOwnership",
    "MemoryCheckpointStorage",
    "S3Settings",
    "StoredOperator",
    "StoredSubtask",
    "SubtaskStatistics",
    "SweepReport",
    "UnreadableCheckpoint",
    "VerifiedFile",
    "checkpoint_storage",
    "complete_checkpoint",
    "copy_checkpoint",
    "find_checkpoint",
    "find_checkpoints",
    "job_histories",
    "latest_checkpoint",
    "load_checkpoint",
    "size_of",
    "sweep",
    "use_hdfs",
    "use_s3",
    "verify",
]
