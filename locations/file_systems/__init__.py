"""Stores of files behind one port: what they can do, how long to go on when they fail."""

from holdfast.locations.file_systems._local import LocalFileSystem
from holdfast.locations.file_systems._memory import MemoryFileSystem
from holdfast.locations.file_systems._port import (
    BytesLike,
    ExclusiveFileSystem,
    FileOutputStream,
    FileStatus,
    FileSystem,
)
from holdfast.locations.file_systems._publishing import (
    PROBE_PREFIX,
    check_exclusive,
    publish,
)
from holdfast.locations.file_systems._registry import (
    file_system_for,
    register_file_system,
    unregister_file_system,
    use_s3,
)
from holdfast.locations.file_systems._retries import RetryPolicy, retry_deadline
from holdfast.locations.file_systems._s3 import S3FileSystem, S3Settings

__all__ = [
    "PROBE_PREFIX",
    "BytesLike",
    "ExclusiveFileSystem",
    "FileOutputStream",
    "FileStatus",
    "FileSystem",
    "LocalFileSystem",
    "MemoryFileSystem",
    "RetryPolicy",
    "S3FileSystem",
    "S3Settings",
    "check_exclusive",
    "file_system_for",
    "publish",
    "register_file_system",
    "retry_deadline",
    "unregister_file_system",
    "use_s3",
]
