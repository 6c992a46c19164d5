"""`hdfs://` and `viewfs://`, through hdfs-native: no JVM, so on executors too."""

from holdfast.locations.file_systems._hdfs._file_system import HdfsFileSystem

__all__ = ["HdfsFileSystem"]
