"""For authors of adapters: the port of file systems, and the parts of a checkpoint storage.

`FileSystem` is what an adapter has to do, and `register_file_system` gives it a scheme. A storage that stands
on no file system implements `CheckpointStorage` and what that returns, with the streams and handles from here.
`holdfast.testing` has the tests for both.
"""

from holdfast.locations.file_systems import (
    BytesLike,
    ExclusiveFileSystem,
    FileOutputStream,
    FileStatus,
    FileSystem,
    LocalFileSystem,
    MemoryFileSystem,
    PendingUpload,
    RetryPolicy,
    UploadingFileSystem,
    file_system_for,
    register_file_system,
    unregister_file_system,
)
from holdfast.locations.handles import (
    ByteStreamStateHandle,
    Checksum,
    ChecksumBuilder,
    FileStateHandle,
    StreamStateHandle,
)
from holdfast.locations.storages import (
    METADATA_FILE,
    CheckpointedStateScope,
    CheckpointMetadataOutputStream,
    CheckpointStateOutputStream,
    CheckpointStorageCoordinatorView,
    CheckpointStorageLocationReference,
    CheckpointStorageWorkerView,
    CheckpointStreamFactory,
)

__all__ = [
    "METADATA_FILE",
    "ByteStreamStateHandle",
    "BytesLike",
    "CheckpointMetadataOutputStream",
    "CheckpointStateOutputStream",
    "CheckpointStorageCoordinatorView",
    "CheckpointStorageLocationReference",
    "CheckpointStorageWorkerView",
    "CheckpointStreamFactory",
    "CheckpointedStateScope",
    "Checksum",
    "ChecksumBuilder",
    "ExclusiveFileSystem",
    "FileOutputStream",
    "FileStateHandle",
    "FileStatus",
    "FileSystem",
    "LocalFileSystem",
    "MemoryFileSystem",
    "PendingUpload",
    "RetryPolicy",
    "StreamStateHandle",
    "UploadingFileSystem",
    "file_system_for",
    "register_file_system",
    "unregister_file_system",
]
