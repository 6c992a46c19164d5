"""How to reach an S3 store: values only."""

from dataclasses import dataclass, field
from typing import ClassVar

from holdfast.errors import InvalidRequestError

_CHECKSUMS = ("crc32c", "crc32", "off")
_STATE_FILES = ("auto", "boto3", "obstore")


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    """How to reach an S3 store, and how to write to it. What is not set is boto3's to find.

    The names are those of the settings `spark.holdfast.s3.*`, with `_` in the place of `-`.

    Attributes:
        endpoint: Where the store is, with `http://` or `https://`; AWS if not set.
        region: The region of the bucket.
        path_style_access: Whether the bucket stands in the path of requests, not in the host name, as
            most stores other than AWS want it.
        access_key: Name of the credentials.
        secret_key: Their secret.
        session_token: The token of temporary ones.
        assumed_role: A role to assume with them.
        server_side_encryption: `AES256` or `aws:kms`.
        kms_key: The key of `aws:kms`.
        storage_class: Storage class of what is written, such as `INTELLIGENT_TIERING`.
        checksum: What the store is to check uploads by: `crc32c`, `crc32`, or `off` for stores that
            know neither. Holdfast's own checksums are not touched by this.
        part_size: Size of a part of a large file in bytes, at least 5 MiB; grows with the file.
        concurrency: Parts of one file that are sent at a time.
        connect_timeout: Seconds to wait for a connection.
        read_timeout: Seconds without a byte of an answer; less than calls are repeated for, so
            that one that stalls is.
        ca_bundle: File with the certificates to trust.
        requester_pays: Whether requests are at the cost of the one who makes them.
        state_files: What reads the beginnings of files, and writes files of a single request:
            `obstore`, `boto3`, or `auto` for obstore where it is installed. All else is boto3's.
    """

    # Bounds of S3's own, and how parts stay below them: 8 MiB parts that double after so many
    # reach 8 TiB, beyond S3's limit. Tests make them small.
    LEAST_PART_BYTES: ClassVar[int] = 5 << 20
    MOST_PARTS: ClassVar[int] = 10_000
    PARTS_OF_A_SIZE: ClassVar[int] = 1_000

    endpoint: str | None = None
    region: str | None = None
    path_style_access: bool = False
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    assumed_role: str | None = None
    server_side_encryption: str | None = None
    kms_key: str | None = None
    storage_class: str | None = None
    checksum: str = "crc32c"
    part_size: int = 8 << 20
    concurrency: int = 4
    connect_timeout: float = 5.0
    read_timeout: float = 20.0
    ca_bundle: str | None = None
    requester_pays: bool = False
    state_files: str = "auto"

    def __post_init__(self) -> None:
        if self.checksum not in _CHECKSUMS:
            message = f"checksum is {self.checksum!r}; it must be one of {', '.join(_CHECKSUMS)}"
            raise InvalidRequestError(message)
        if self.state_files not in _STATE_FILES:
            known = ", ".join(_STATE_FILES)
            message = f"state_files is {self.state_files!r}; it must be one of {known}"
            raise InvalidRequestError(message)
        least = self.LEAST_PART_BYTES
        if self.part_size < least:
            message = f"part of {self.part_size} bytes is too small; S3 takes {least}"
            raise InvalidRequestError(message)
        if self.concurrency < 1:
            raise InvalidRequestError(f"concurrency is {self.concurrency}; it must be at least 1")
        if self.endpoint is not None and not {"@", "?"}.isdisjoint(self.endpoint):
            raise InvalidRequestError("endpoint has credentials in it; give them by themselves")
        if (self.access_key is None) != (self.secret_key is None):
            raise InvalidRequestError("access key and secret key come together or not at all")
        if self.session_token is not None and self.access_key is None:
            message = "a session token needs the access key and secret key that it goes with"
            raise InvalidRequestError(message)
        if self.kms_key is not None and self.server_side_encryption is None:
            message = "a KMS key needs server_side_encryption='aws:kms' beside it"
            raise InvalidRequestError(message)

    def for_writing(self) -> dict[str, str]:
        """Parameters of every request that makes an object."""
        parameters = {
            "ServerSideEncryption": self.server_side_encryption,
            "SSEKMSKeyId": self.kms_key,
            "StorageClass": self.storage_class,
        }
        return {key: value for key, value in parameters.items() if value}

    def for_all(self) -> dict[str, str]:
        """Parameters of every request to an object."""
        return {"RequestPayer": "requester"} if self.requester_pays else {}
