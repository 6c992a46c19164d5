"""S3 and compatible stores, through boto3; small files through obstore if it is installed.

Start with `s3_file_system`; `s3_object` has the requests, `s3_errors` translates their failures.
"""

from holdfast.locations.file_systems.s3.s3_client import client_options, connection_for
from holdfast.locations.file_systems.s3.s3_errors import error_for
from holdfast.locations.file_systems.s3.s3_file_system import S3FileSystem
from holdfast.locations.file_systems.s3.s3_settings import S3Settings
from holdfast.locations.file_systems.s3.s3_streams import S3OutputStream

__all__ = [
    "S3FileSystem",
    "S3OutputStream",
    "S3Settings",
    "client_options",
    "connection_for",
    "error_for",
]
