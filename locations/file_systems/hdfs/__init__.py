"""`hdfs://` and `viewfs://`, through hdfs-native: no JVM, so on executors too.

Start with `hdfs_file_system`; `hdfs_client` gives each call a timeout.
"""

from holdfast.locations.file_systems.hdfs.hdfs_file_system import HdfsFileSystem

__all__ = ["HdfsFileSystem"]
