"""Any other store, through fsspec: `sftp://`, or `fsspec+s3://` for a scheme that is built in."""

from holdfast.locations.file_systems._fsspec._file_system import (
    FsspecFileSystem,
    fsspec_file_system,
)
from holdfast.locations.file_systems._fsspec._s3fs import S3fsFileSystem

__all__ = ["FsspecFileSystem", "S3fsFileSystem", "fsspec_file_system"]
