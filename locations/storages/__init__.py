"""Storage of checkpoints: storages, locations, and the streams into them.

`contract` draws the protocol; `file_system_storage` implements it over any file system. `layout` names the files. The
commit is the success call of the metadata stream in `file_system_streams`; `job_directory` decides between two drivers
of a job. Start with `contract`.
"""

from holdfast.locations.storages.completed import (
    FileSystemCompletedCheckpointStorageLocation,
    find_metadata,
    list_all,
    list_each,
    load_checkpoint,
    resolve_pointer,
)
from holdfast.locations.storages.contract import (
    CheckpointedStateScope,
    CheckpointMetadataOutputStream,
    CheckpointStateOutputStream,
    CheckpointStorage,
    CheckpointStorageAccess,
    CheckpointStorageLocation,
    CheckpointStorageLocationReference,
    CheckpointStreamFactory,
    CompletedCheckpoint,
    CompletedCheckpointStorageLocation,
    DiscardingStream,
    JobOwnership,
    copy_bytes,
)
from holdfast.locations.storages.file_system_storage import (
    INLINE_THRESHOLD_BYTES,
    MAX_INLINE_THRESHOLD_BYTES,
    FileSystemCheckpointStorage,
    FileSystemCheckpointStorageAccess,
    FileSystemCheckpointStorageLocation,
    FileSystemCheckpointStreamFactory,
    MemoryCheckpointStorage,
    NonPersistentMetadataCheckpointStorageLocation,
    PersistentMetadataCheckpointStorageLocation,
    checkpoint_storage,
)
from holdfast.locations.storages.job_directory import (
    JobDirectory,
    savepoint_base,
    savepoints_in,
)
from holdfast.locations.storages.layout import (
    CHECKPOINT,
    DRIVER,
    EPOCHS,
    JOB_ID,
    LEASE,
    METADATA_FILE,
    SAVEPOINT_NAME,
    SHARED,
    STATE_FILE,
    belongs_to,
    check_job_id,
    checkpoint_id_of,
    entropy_paths,
    entropy_root,
    find_stray_file,
    has_marker,
    is_checkpoint,
    is_file_of,
    is_state_file,
    location_mismatch,
    without_marker,
)
