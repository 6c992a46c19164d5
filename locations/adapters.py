"""Interfaces for authors of adapters: the port of file systems, and the parts of a checkpoint storage.

An adapter implements `FileSystem`, and `register_file_system` gives it a scheme. Another storage over file systems
implements `CheckpointStorage` and the objects that it returns, with the streams and handles from here.
`holdfast.testing` has the tests of both.
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
    CheckpointStorageLocationReference,
    CheckpointStreamFactory,
)

__all__ = [
    "METADATA_FILE",
    "ByteStreamStateHandle",
    "BytesLike",
    "CheckpointMetadataOutputStream",
    "CheckpointStateOutputStream",
    "CheckpointStorageLocationReference",
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
