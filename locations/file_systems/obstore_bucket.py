"""Requests through obstore before boto3, if obstore is installed: they take a fifth of the CPU time.

obstore gets one attempt at writes of small objects and reads of heads. It hides status codes, and its errors quote the
store's answer including secrets. So boto3 repeats every failed request, and obstore's errors are not passed on.
"""

import logging
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.common import SYSTEM_CLOCK, ProcessCache
from holdfast.errors import CheckpointNotFoundError, InvalidRequestError
from holdfast.locations.file_systems.obstore_requests import (
    begin_use,
    code_of,
    was_not_performed,
)
from holdfast.locations.file_systems.port import BytesLike
from holdfast.locations.file_systems.s3_client import (
    Connection,
    S3Settings,
    connection_for,
    is_directory_bucket,
)

_log = logging.getLogger(__name__)

HEAD_BYTES = 4 << 20
"""Number of bytes that obstore reads of an object. Most objects are smaller; boto3 reads the rest of others faster."""

# botocore renews credentials ten minutes before they expire, obstore requests new ones five minutes before.
_CREDENTIALS_LAST = timedelta(minutes=10)

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")

# object_store reads these from the environment, where they may be meant for other programs.
OVERRIDING_VARIABLES = (
    "AWS_CHECKSUM_ALGORITHM",
    "AWS_CONDITIONAL_PUT",
    "AWS_S3_EXPRESS",
    "AWS_SERVER_SIDE_ENCRYPTION",
    "AWS_SSE_BUCKET_KEY_ENABLED",
    "AWS_SSE_CUSTOMER_KEY_BASE64",
    "AWS_SSE_KMS_KEY_ID",
)

_STORES: ProcessCache[tuple[S3Settings, str], "ObstoreBucket | None"] = ProcessCache()


def obstore_for(settings: S3Settings, bucket: str) -> "ObstoreBucket | None":
    """Return a bucket through obstore, or None if boto3 must be used.

    Raises:
        InvalidRequestError: The settings require obstore, and it is not installed.
    """
    if settings.state_files == "boto3":
        return None
    usable = _STORES.get(
        (settings, bucket), lambda: _make_bucket(settings, connection_for(settings), bucket)
    )
    return usable if usable is not None and begin_use() else None


class PutOutcome(Enum):
    """The outcome of a request."""

    DONE = "done"
    NOT_DONE = "certainly not done"
    UNKNOWN = "unknown"


class ObstoreBucket:
    """The objects of a bucket."""

    def __init__(self, options: Mapping[str, Any], settings: S3Settings) -> None:
        from obstore.store import S3Store  # noqa: PLC0415  # optional

        self._store = S3Store(**options)
        self._bucket = options["bucket"]
        self._attributes = (
            {"Storage-Class": settings.storage_class} if settings.storage_class else {}
        )

    def put(self, key: str, data: BytesLike, metadata: Mapping[str, str]) -> PutOutcome:
        """Create an object if its name is free."""
        from obstore import put  # noqa: PLC0415  # optional

        try:
            put(
                self._store,
                key,
                data,
                attributes={**self._attributes, **metadata},
                mode="create",
                use_multipart=False,
            )
        except Exception as error:  # noqa: BLE001  # boto3 repeats the request and reports the error
            _log_failure("write", key, error)
            return PutOutcome.NOT_DONE if was_not_performed(error) else PutOutcome.UNKNOWN
        return PutOutcome.DONE

    def head(self, key: str) -> "ObjectHead | None":
        """Return the head of an object, or None if the request failed.

        Raises:
            CheckpointNotFoundError: The object does not exist.
        """
        from obstore import get  # noqa: PLC0415  # optional

        try:
            result = get(self._store, key, options={"range": (0, HEAD_BYTES)})
            etag = result.meta["e_tag"]
            if not etag:
                raise ValueError("answer is not an object")  # noqa: TRY301  # logged like the others
            return ObjectHead(memoryview(result.bytes()), result.meta["size"], etag)
        except Exception as error:  # noqa: BLE001  # boto3 repeats the request and reports the error
            self._report("read", key, error)
            return None

    def read_range(self, key: str, start: int, end: int) -> memoryview | None:
        """Return the bytes from `start` up to `end`, or None if the request failed. Raises as `head`."""
        from obstore import get_range  # noqa: PLC0415  # optional

        try:
            return memoryview(get_range(self._store, key, start=start, end=end)).cast("B")
        except Exception as error:  # noqa: BLE001  # boto3 repeats the request and reports the error
            self._report("read", key, error)
            return None

    def _report(self, action: str, key: str, error: Exception) -> None:
        """Raise `CheckpointNotFoundError` if the object does not exist; else log that boto3 is used."""
        if isinstance(error, FileNotFoundError) and code_of(error) == "NoSuchKey":
            message, uri = "no such object", f"s3://{self._bucket}/{key}"
            raise CheckpointNotFoundError(message, uri) from None
        _log_failure(action, key, error)


class ObjectHead(NamedTuple):
    """The first bytes of an object, the length of all of it, and its version."""

    data: memoryview
    size: int
    etag: str


def _make_bucket(settings: S3Settings, connection: Connection, bucket: str) -> ObstoreBucket | None:
    if not _BUCKET.fullmatch(bucket) or is_directory_bucket(bucket):
        return None  # for example an access point or a directory bucket
    try:
        import obstore  # noqa: F401, PLC0415  # optional
    except ImportError as error:
        if settings.state_files == "obstore":
            message = "state_files='obstore' needs obstore: pip install 'holdfast[s3,obstore]'"
            raise InvalidRequestError(message, kind="missing-package") from error
        return None
    foreign = [name for name in OVERRIDING_VARIABLES if name in os.environ]
    if foreign:
        _log.warning("obstore would use %s; boto3 is used instead", ", ".join(foreign))
        return None
    try:
        return ObstoreBucket(_options(settings, connection, bucket), settings)
    except Exception as error:  # noqa: BLE001  # obstore has many classes
        _log.warning(
            "obstore can't be used for bucket %s (%s); using boto3", bucket, type(error).__name__
        )
        return None


def _options(settings: S3Settings, connection: Connection, bucket: str) -> dict[str, Any]:
    endpoint, is_path_style = endpoint_of(connection.client, bucket)
    client: dict[str, Any] = {
        "allow_http": True,
        "connect_timeout": timedelta(seconds=settings.connect_timeout),
        # For the whole request, because obstore does not detect stalls while sending.
        "timeout": timedelta(seconds=settings.read_timeout),
        "user_agent": "holdfast",
    }
    certificates = settings.ca_bundle or os.environ.get("AWS_CA_BUNDLE")
    if certificates:
        client["root_certificate"] = Path(certificates).read_bytes()
    options = {
        "bucket": bucket,
        "endpoint": endpoint,
        "region": connection.client.meta.region_name,
        "virtual_hosted_style_request": not is_path_style,
        "credential_provider": Credentials(connection.credentials),
        "request_payer": settings.requester_pays,
        "skip_signature": False,
        "unsigned_payload": False,
        "server_side_encryption": settings.server_side_encryption,
        "sse_kms_key_id": settings.kms_key,
        "client_options": client,
        # boto3's requests are retried instead.
        "retry_config": {"max_retries": 0, "retry_timeout": timedelta(0)},
    }
    return {name: value for name, value in options.items() if value is not None}


def endpoint_of(client: Any, bucket: str) -> tuple[str, bool]:
    """Return the endpoint of botocore's requests to the bucket, and whether it is path-style."""
    endpoint = client.meta.endpoint_url.rstrip("/")
    url = client.generate_presigned_url("get_object", {"Bucket": bucket, "Key": "key"})
    if url.partition("?")[0].endswith(f"/{bucket}/key"):
        return endpoint, True
    scheme, _, host = endpoint.partition("://")
    return f"{scheme}://{bucket}.{host}", False


class Credentials:
    """botocore's credentials, which obstore requests again before they expire."""

    def __init__(self, credentials: Any) -> None:
        self._credentials = credentials

    def __call__(self) -> dict[str, Any]:
        frozen = self._credentials.get_frozen_credentials()
        # The machine's clock, because obstore compares the result with it.
        now = datetime.fromtimestamp(SYSTEM_CLOCK.now_ms() / 1000, UTC)
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": now + _CREDENTIALS_LAST,
        }


def _log_failure(action: str, key: str, error: Exception) -> None:
    _log.info("obstore could not %s %s (%s); trying boto3", action, key, type(error).__name__)
