"""Any other store, through fsspec: `sftp://`, or `fsspec+file://` for a scheme that is built in."""

from holdfast.locations.file_systems._fsspec._file_system import (
    FsspecFileSystem,
    fsspec_file_system,
)

__all__ = ["FsspecFileSystem", "fsspec_file_system"]
