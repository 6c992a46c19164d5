"""S3 and what speaks its protocol, through boto3."""

from holdfast.locations.file_systems._s3._file_system import S3FileSystem
from holdfast.locations.file_systems._s3._settings import S3Settings

__all__ = ["S3FileSystem", "S3Settings"]
