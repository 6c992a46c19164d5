"""Stores of files behind one port: what they can do, how long to go on when they fail."""

from holdfast.locations.file_systems._hdfs import HdfsFileSystem
from holdfast.locations.file_systems._local import LocalFileSystem
from holdfast.locations.file_systems._memory import MemoryFileSystem
from holdfast.locations.file_systems._port import (
    BytesLike,
    ExclusiveFileSystem,
    FileOutputStream,
    FileStatus,
    FileSystem,
    PendingUpload,
    UploadingFileSystem,
)
from holdfast.locations.file_systems._positioned import PositionedInputStream
from holdfast.locations.file_systems._publishing import (
    PROBE_PREFIX,
    check_exclusive,
    publish,
)
from holdfast.locations.file_systems._registry import (
    file_system_for,
    register_file_system,
    unregister_file_system,
    use_hdfs,
    use_s3,
)
from holdfast.locations.file_systems._retries import RetryPolicy, retry_deadline
from holdfast.locations.file_systems._s3 import S3FileSystem, S3Settings
from holdfast.locations.file_systems._uploads import abort_uploads, pending_uploads

__all__ = [
    "PROBE_PREFIX",
    "BytesLike",
    "ExclusiveFileSystem",
    "FileOutputStream",
    "FileStatus",
    "FileSystem",
    "HdfsFileSystem",
    "LocalFileSystem",
    "MemoryFileSystem",
    "PendingUpload",
    "PositionedInputStream",
    "RetryPolicy",
    "S3FileSystem",
    "S3Settings",
    "UploadingFileSystem",
    "abort_uploads",
    "check_exclusive",
    "file_system_for",
    "pending_uploads",
    "publish",
    "register_file_system",
    "retry_deadline",
    "unregister_file_system",
    "use_hdfs",
    "use_s3",
]
