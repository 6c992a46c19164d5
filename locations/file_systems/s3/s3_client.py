"""boto3's client, made once per process because it does not survive a fork."""

import os
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.common import ProcessCache
from holdfast.errors import InvalidRequestError
from holdfast.locations.file_systems.s3.s3_settings import S3Settings

_SIGNATURE = "holdfast-s3v4-part"

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


def client_options(settings: S3Settings) -> dict[str, Any]:
    """Return botocore's options for requests, for boto3 and s3fs.

    Raises:
        InvalidRequestError: The file of certificates is missing.
    """
    if settings.ca_bundle is not None and not os.path.isfile(settings.ca_bundle):
        raise InvalidRequestError("file of certificates does not exist", settings.ca_bundle)
    return {
        # Retries have one owner. The SDK's would multiply with ours, and their quota fails
        # whole bursts.
        "retries": {"mode": "standard", "total_max_attempts": 1},
        "connect_timeout": settings.connect_timeout,
        "read_timeout": settings.read_timeout,
        "tcp_keepalive": True,
        "max_pool_connections": max(32, 2 * settings.concurrency),
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
        raise InvalidRequestError(message) from error
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
            raise InvalidRequestError(message)
        if settings.assumed_role is not None:
            _assume(session, settings, config)
        client = session.client(
            "s3", endpoint_url=settings.endpoint, config=config, verify=settings.ca_bundle
        )
        if settings.checksum != "off":
            _sign_parts_by_checksum(client)
        return Connection(client, session.get_credentials())
    except (BotoCoreError, ValueError) as error:
        raise InvalidRequestError(f"S3 client can't be created ({error})") from error


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
