"""Settings of an S3 store, and boto3's client, made once per process because it does not survive a fork."""

import os
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from holdfast.common import ProcessCache
from holdfast.errors import InvalidRequestError

_CHECKSUMS = ("crc32c", "crc32", "off")
_STATE_FILES = ("auto", "boto3", "obstore")
_SIGNATURE = "holdfast-s3v4-part"

_ANNOUNCED_BYTES = 1 << 20
"""Length of the smallest body that the store may refuse before it is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    """Settings to reach an S3 store and write to it. boto3 determines values that are not set.

    The names are those of the settings `spark.holdfast.s3.*`, with `_` instead of `-`.

    Attributes:
        endpoint: URL of the store, with `http://` or `https://`; AWS if not set.
        region: The region of the bucket.
        path_style_access: Whether the bucket is in the path of requests instead of the host name. Most
            stores other than AWS need this.
        access_key: Access key id of the credentials.
        secret_key: Secret of the credentials.
        session_token: Token of temporary credentials.
        assumed_role: A role to assume with the credentials.
        server_side_encryption: `AES256` or `aws:kms`.
        kms_key: Key for `aws:kms`.
        storage_class: Storage class of new objects, such as `INTELLIGENT_TIERING`.
        checksum: Checksum that the store verifies uploads with: `crc32c`, `crc32`, or `off` for stores
            that support neither. Holdfast's own checksums are independent of it.
        part_size: Bytes of a part of a large file, at least 5 MiB; grows with the file.
        concurrency: Number of parts of one file that are sent at the same time.
        connect_timeout: Seconds to wait for a connection.
        read_timeout: Seconds to wait for the next byte of an answer; less than the deadline of
            retries, so that a stalled request is retried.
        ca_bundle: File with the certificates to trust.
        requester_pays: Whether the requester pays for requests.
        state_files: Library that reads the heads of files and writes files of a single request:
            `obstore`, `boto3`, or `auto` for obstore if it is installed. boto3 does the rest.
    """

    # Limits of S3, and the number of parts after which the part size doubles: parts of 8 MiB then
    # reach 8 TiB, more than S3's limit. Tests lower them.
    MIN_PART_BYTES: ClassVar[int] = 5 << 20
    MAX_PARTS: ClassVar[int] = 10_000
    PARTS_PER_SIZE: ClassVar[int] = 1_000

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
        for name, known in (("checksum", _CHECKSUMS), ("state_files", _STATE_FILES)):
            if (value := getattr(self, name)) not in known:
                message = f"{name} must be one of {', '.join(known)}, got {value!r}"
                raise InvalidRequestError(message)
        for name, lowest in (("part_size", self.MIN_PART_BYTES), ("concurrency", 1)):
            if (number := getattr(self, name)) < lowest:
                raise InvalidRequestError(f"{name} must be >= {lowest}, got {number}")
        if self.endpoint is not None and not {"@", "?"}.isdisjoint(self.endpoint):
            raise InvalidRequestError("endpoint must not contain credentials; set them separately")
        if (self.access_key is None) != (self.secret_key is None):
            raise InvalidRequestError("access_key and secret_key must be set together")
        if self.session_token is not None and self.access_key is None:
            message = "session_token requires access_key and secret_key"
            raise InvalidRequestError(message)
        if self.kms_key is not None and self.server_side_encryption is None:
            message = "kms_key requires server_side_encryption='aws:kms'"
            raise InvalidRequestError(message)

    def write_parameters(self) -> dict[str, str]:
        """Return the parameters of every request that creates an object."""
        parameters = {
            "ServerSideEncryption": self.server_side_encryption,
            "SSEKMSKeyId": self.kms_key,
            "StorageClass": self.storage_class,
        }
        return {key: value for key, value in parameters.items() if value}

    def request_parameters(self) -> dict[str, str]:
        """Return the parameters of every request to an object."""
        return {"RequestPayer": "requester"} if self.requester_pays else {}


CONNECTIONS: ProcessCache[S3Settings, "Connection"] = ProcessCache()


@dataclass(frozen=True, slots=True)
class Connection:
    """boto3's client, and the botocore credentials that it signs with."""

    client: Any
    credentials: Any


def connection_for(settings: S3Settings) -> Connection:
    """Return the connection of this process.

    Raises:
        InvalidRequestError: boto3 is missing, or rejects the settings.
    """
    # Making a client is not thread-safe, but using one is.
    return CONNECTIONS.get(settings, lambda: _make(settings))


def is_directory_bucket(bucket: str) -> bool:
    """Return whether a bucket, or an access point to it, is of S3 Express One Zone: its name has a reserved end."""
    return bucket.endswith(("--x-s3", "--xa-s3"))


def client_options(settings: S3Settings) -> dict[str, Any]:
    """Return botocore's options for requests, for boto3 and s3fs.

    Raises:
        InvalidRequestError: The file of certificates is missing.
    """
    if settings.ca_bundle is not None and not os.path.isfile(settings.ca_bundle):
        raise InvalidRequestError(
            "file of certificates does not exist", settings.ca_bundle, kind="connection"
        )
    return {
        # Retries have one owner. The SDK's would multiply with ours, and their quota fails
        # whole bursts.
        "retries": {"mode": "standard", "total_max_attempts": 1},
        "connect_timeout": settings.connect_timeout,
        "read_timeout": settings.read_timeout,
        "tcp_keepalive": True,
        "max_pool_connections": max(64, 2 * settings.concurrency),
        "s3": {"addressing_style": "path" if settings.path_style_access else "auto"},
        # Each request names its checksum itself.
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
        "user_agent_extra": "holdfast",
    }


def _make(settings: S3Settings) -> Connection:
    try:
        import boto3  # noqa: PLC0415  # optional
        from botocore.config import Config  # noqa: PLC0415  # optional
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415  # optional
    except ImportError as error:
        message = "s3:// needs boto3: pip install 'holdfast[s3]'"
        raise InvalidRequestError(message, kind="missing-package") from error
    config = Config(**client_options(settings))
    try:
        session = boto3.Session(
            aws_access_key_id=settings.access_key,
            aws_secret_access_key=settings.secret_key,
            aws_session_token=settings.session_token,
            region_name=settings.region,
        )
        if session.get_credentials() is None:  # not cached: they may be available a moment later
            message = "no credentials for S3; set them by settings, environment, files or a role"
            raise InvalidRequestError(message, kind="refused")
        if settings.assumed_role is not None:
            _assume(session, settings, config)
        client = session.client(
            "s3", endpoint_url=settings.endpoint, config=config, verify=settings.ca_bundle
        )
        if settings.checksum != "off":
            _sign_parts_by_checksum(client)
        client.meta.events.register("before-send.s3", _send_small_bodies_at_once)
        return Connection(client, session.get_credentials())
    except (BotoCoreError, ValueError) as error:
        raise InvalidRequestError(
            f"S3 client can't be created ({error})", kind="connection"
        ) from error


def _send_small_bodies_at_once(request: Any, **_: Any) -> None:
    """Remove `Expect: 100-continue`, with which botocore waits for an answer, a round trip, before it sends any body."""
    if int(request.headers.get("Content-Length", 0)) < _ANNOUNCED_BYTES:
        request.headers.pop("Expect", None)


def _sign_parts_by_checksum(client: Any) -> None:
    """Sign a part's checksum only, as always over HTTPS, instead of its SHA-256 as well.

    The SHA-256 costs more than the rest of an upload over HTTP. And this signer is in Python:
    awscrt's, which botocore prefers, copies each part.
    """
    from botocore.auth import (  # noqa: PLC0415  # optional
        AUTH_TYPE_MAPS,
        UNSIGNED_PAYLOAD,
        S3SigV4Auth,
    )

    class PartAuth(S3SigV4Auth):  # type: ignore[misc]  # it has no types
        def payload(self, request: Any) -> str:  # noqa: ARG002  # botocore's
            return str(UNSIGNED_PAYLOAD)

    def choose(signature_version: Any, signing_name: str, **_: Any) -> str | None:
        return _SIGNATURE if (signature_version, signing_name) == ("v4", "s3") else None

    AUTH_TYPE_MAPS.setdefault(_SIGNATURE, PartAuth)
    client.meta.events.register("choose-signer.s3.UploadPart", choose)


def _assume(session: Any, settings: S3Settings, config: Any) -> None:
    """Make the session assume a role, whose credentials are renewed before they expire."""
    from botocore.credentials import (  # noqa: PLC0415  # optional
        AssumeRoleCredentialFetcher,
        DeferredRefreshableCredentials,
    )

    inner = session._session  # noqa: SLF001  # boto3 has no public way to refreshing credentials
    fetcher = AssumeRoleCredentialFetcher(
        client_creator=partial(inner.create_client, config=config, verify=settings.ca_bundle),
        source_credentials=inner.get_credentials(),
        role_arn=settings.assumed_role,
        extra_args={"RoleSessionName": "holdfast"},
    )
    inner._credentials = DeferredRefreshableCredentials(  # noqa: SLF001  # see above
        method="assume-role", refresh_using=fetcher.fetch_credentials
    )
