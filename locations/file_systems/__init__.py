"""Stores of files, which all implement one interface of seven methods.

`port` defines the interface; `local`, `memory`, `s3_file_system`, `object_store` (Google Cloud Storage and Azure),
`hdfs_file_system`, `fsspec_file_system` (any other store) and `s3fs` (S3 through fsspec) implement it; `registry` finds the file system of a URI and wraps it in retries
(`retrying`); `publishing` makes a file appear once and whole. A new store is a module here and a line in `registry`.
Start with `port`.
"""

from holdfast.locations.file_systems.fsspec_file_system import fsspec_file_system
from holdfast.locations.file_systems.hdfs_file_system import HdfsFileSystem
from holdfast.locations.file_systems.local import LocalFileSystem
from holdfast.locations.file_systems.memory import MemoryFileSystem
from holdfast.locations.file_systems.object_store import (
    AzureFileSystem,
    AzureSettings,
    GcsSettings,
    ObjectStoreFileSystem,
    ObjectStoreSettings,
)
from holdfast.locations.file_systems.port import (
    BytesLike,
    CopyingFileSystem,
    ExclusiveFileSystem,
    FileOutputStream,
    FileStatus,
    FileSystem,
    LinkingFileSystem,
    PendingUpload,
    PositionedInputStream,
    UploadingFileSystem,
)
from holdfast.locations.file_systems.publishing import (
    PROBE_PREFIX,
    check_exclusive,
    create_file,
    publish,
)
from holdfast.locations.file_systems.registry import (
    abort_uploads,
    file_system_for,
    pending_uploads,
    register_file_system,
    unregister_file_system,
    use_azure,
    use_gcs,
    use_hdfs,
    use_s3,
)
from holdfast.locations.file_systems.retrying import (
    ABORT_DEADLINE_S,
    Retrier,
    RetryingExclusiveFileSystem,
    RetryingFileSystem,
    RetryPolicy,
    StoreCalls,
    retry_deadline,
    store_calls_of_process,
)
from holdfast.locations.file_systems.s3_client import S3Settings, connection_for
from holdfast.locations.file_systems.s3_file_system import S3FileSystem
from holdfast.locations.file_systems.s3fs import S3fsFileSystem
