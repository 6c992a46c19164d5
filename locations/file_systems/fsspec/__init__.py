"""Any other store, through fsspec: `sftp://`, or `fsspec+s3://` for a scheme that is built in.

Start with `fsspec_file_system`; `stores` describes what is known of single stores.
"""

from holdfast.locations.file_systems.fsspec.fsspec_files import fsspec_file_system
from holdfast.locations.file_systems.fsspec.s3fs_file_system import S3fsFileSystem
from holdfast.locations.file_systems.fsspec.stores import milliseconds

__all__ = ["S3fsFileSystem", "fsspec_file_system", "milliseconds"]
