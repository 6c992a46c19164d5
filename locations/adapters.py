"""Interfaces for adapters: of file systems, and of checkpoint storages that are not built on a file system.

An adapter implements `FileSystem`; `register_file_system` gives it a scheme. A storage implements `CheckpointStorage`
and the interfaces of the objects that it returns, with the streams and handles of this module. `holdfast.testing` has
test suites for both.
"""

from holdfast.locations.checksums import Checksum, ChecksumBuilder
from holdfast.locations.file_systems import (
    BytesLike,
    CopyingFileSystem,
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
from holdfast.locations.handles import ByteStreamStateHandle, FileStateHandle, StreamStateHandle
from holdfast.locations.storages import (
    METADATA_FILE,
    CheckpointedStateScope,
    CheckpointMetadataOutputStream,
    CheckpointStateOutputStream,
    CheckpointStorageAccess,
    CheckpointStorageLocation,
    CheckpointStorageLocationReference,
    CheckpointStreamFactory,
    CompletedCheckpointStorageLocation,
    JobOwnership,
)

__all__ = [
    "METADATA_FILE",
    "ByteStreamStateHandle",
    "BytesLike",
    "CheckpointMetadataOutputStream",
    "CheckpointStateOutputStream",
    "CheckpointStorageAccess",
    "CheckpointStorageLocation",
    "CheckpointStorageLocationReference",
    "CheckpointStreamFactory",
    "CheckpointedStateScope",
    "Checksum",
    "ChecksumBuilder",
    "CompletedCheckpointStorageLocation",
    "CopyingFileSystem",
    "ExclusiveFileSystem",
    "FileOutputStream",
    "FileStateHandle",
    "FileStatus",
    "FileSystem",
    "JobOwnership",
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
