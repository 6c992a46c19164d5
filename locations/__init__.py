"""Where checkpoints go: file systems, streams, handles, storages and the metadata format."""

if __name__ == "locations":  # reached through the repository root: a second copy of every class
    raise ImportError("import holdfast.locations, not locations")

from holdfast.locations._checkpoints import (
    CompletedCheckpoint,
    checkpoint_storage,
    complete_checkpoint,
    latest_checkpoint,
    load_checkpoint,
)
from holdfast.locations._checksum import Checksum
from holdfast.locations._file_system import (
    BytesLike,
    FileOutputStream,
    FileStatus,
    FileSystem,
    file_system_for,
    register_file_system,
)
from holdfast.locations._file_system_storage import (
    INLINE_THRESHOLD_BYTES,
    FileSystemCheckpointStorage,
    FileSystemCheckpointStorageAccess,
    FileSystemCheckpointStorageLocation,
    FileSystemCheckpointStreamFactory,
)
from holdfast.locations._handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    OperatorStateHandle,
    OperatorStateMode,
    StatePartitions,
    StreamStateHandle,
    read_exactly,
)
from holdfast.locations._local import LocalFileSystem
from holdfast.locations._memory import MemoryFileSystem
from holdfast.locations._memory_storage import (
    NOT_EXTERNALLY_ADDRESSABLE,
    MemoryCheckpointStorage,
)
from holdfast.locations._metadata import (
    CheckpointMetadata,
    OperatorState,
    SubtaskState,
    SubtaskStatistics,
    decode_metadata,
    encode_metadata,
)
from holdfast.locations._storage import (
    METADATA_FILE,
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
    CompletedCheckpointStorageLocation,
    check_job_id,
)

__all__ = [
    "INLINE_THRESHOLD_BYTES",
    "METADATA_FILE",
    "NOT_EXTERNALLY_ADDRESSABLE",
    "ByteStreamStateHandle",
    "BytesLike",
    "CheckpointMetadata",
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
    "Checksum",
    "CompletedCheckpoint",
    "CompletedCheckpointStorageLocation",
    "FileOutputStream",
    "FileStateHandle",
    "FileStatus",
    "FileSystem",
    "FileSystemCheckpointStorage",
    "FileSystemCheckpointStorageAccess",
    "FileSystemCheckpointStorageLocation",
    "FileSystemCheckpointStreamFactory",
    "LocalFileSystem",
    "MemoryCheckpointStorage",
    "MemoryFileSystem",
    "OperatorState",
    "OperatorStateHandle",
    "OperatorStateMode",
    "StatePartitions",
    "StreamStateHandle",
    "SubtaskState",
    "SubtaskStatistics",
    "check_job_id",
    "checkpoint_storage",
    "complete_checkpoint",
    "decode_metadata",
    "encode_metadata",
    "file_system_for",
    "latest_checkpoint",
    "load_checkpoint",
    "read_exactly",
    "register_file_system",
]

register_file_system("file", LocalFileSystem)
register_file_system("memory", MemoryFileSystem)
