"""Checkpoints in their stores: open a storage, find checkpoints, copy, verify and sweep them.

`holdfast.locations.adapters` has the interfaces that file systems and storages implement.
"""

if __name__ == "locations":  # reached through the repository root: a second copy of every class
    raise ImportError("import holdfast.locations, not locations")

from holdfast.locations.coordination import (
    checkpoint_size,
    complete_checkpoint,
    copy_checkpoint,
    find_checkpoint,
    find_checkpoints,
    job_histories,
    latest_checkpoint,
    sweep,
    verify_files,
)
from holdfast.locations.file_systems import (
    AzureSettings,
    GcsSettings,
    S3Settings,
    use_azure,
    use_gcs,
    use_hdfs,
    use_s3,
)
from holdfast.locations.metadata import (
    CheckpointMetadata,
    StoredOperator,
    StoredSubtask,
    SubtaskStatistics,
)
from holdfast.locations.storages import (
    CheckpointStorage,
    CompletedCheckpoint,
    FileSystemCheckpointStorage,
    MemoryCheckpointStorage,
    checkpoint_storage,
    load_checkpoint,
)

__all__ = [
    "AzureSettings",
    "CheckpointMetadata",
    "CheckpointStorage",
    "CompletedCheckpoint",
    "FileSystemCheckpointStorage",
    "GcsSettings",
    "MemoryCheckpointStorage",
    "S3Settings",
    "StoredOperator",
    "StoredSubtask",
    "SubtaskStatistics",
    "checkpoint_size",
    "checkpoint_storage",
    "complete_checkpoint",
    "copy_checkpoint",
    "find_checkpoint",
    "find_checkpoints",
    "job_histories",
    "latest_checkpoint",
    "load_checkpoint",
    "sweep",
    "use_azure",
    "use_gcs",
    "use_hdfs",
    "use_s3",
    "verify_files",
]
