"""boto3's client, made once per process: it doesn't survive a fork."""

import os
import threading
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.errors import InvalidRequestError
from holdfast.locations.file_systems._s3._settings import S3Settings

_SIGNATURE = "holdfast-s3v4"

_LOCK = threading.Lock()
_CONNECTIONS: dict[tuple[int, S3Settings], "Connection"] = {}


def _renew_lock() -> None:
    global _LOCK  # noqa: PLW0603  # whoever held it is not in this process
    _LOCK = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


@dataclass(frozen=True, slots=True)
class Connection:
    """boto3's client, and botocore's credentials that it signs by."""

    client: Any
    credentials: Any


def connection_for(settings: S3Settings) -> Connection:
    """The connection of this process.

    Raises:
        InvalidRequestError: boto3 is missing, or refuses the settings.
    """
    key = (os.getpid(), settings)
    found = _CONNECTIONS.get(key)
    if found is None:
        with _LOCK:  # making a client is not safe for threads, using one is
            found = _CONNECTIONS.get(key)
            if found is None:
                found = _CONNECTIONS[key] = _make(settings)
    return found


def _make(settings: S3Settings) -> Connection:
    try:
        import boto3  # noqa: PLC0415  # optional
        from botocore.auth import AUTH_TYPE_MAPS, S3SigV4Auth  # noqa: PLC0415  # optional
        from botocore.config import Config  # noqa: PLC0415  # optional
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415  # optional
    except ImportError as error:
        message = "s3:// needs boto3: pip install 'holdfast[s3]'"
        raise InvalidRequestError(message) from error
    if settings.ca_bundle is not None and not os.path.isfile(settings.ca_bundle):
        raise InvalidRequestError("file of certificates is not there", settings.ca_bundle)
    config = Config(
        # One owner of retries, and that is not the SDK: its own multiply with ours, and their
        # quota fails whole bursts.
        retries={"mode": "standard", "total_max_attempts": 1},
        connect_timeout=settings.connect_timeout_s,
        read_timeout=settings.read_timeout_s,
        tcp_keepalive=True,
        max_pool_connections=max(32, 2 * settings.concurrency),
        s3={
            "addressing_style": "path" if settings.path_style else "auto",
            # The checksum is signed. A SHA-256 beside it, as over HTTP by default, costs more
            # than all the rest of an upload.
            "payload_signing_enabled": settings.checksum == "off",
        },
        # What is wanted is said with each request.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        user_agent_extra="holdfast",
    )
    try:
        session = boto3.Session(
            aws_access_key_id=settings.access_key,
            aws_secret_access_key=settings.secret_key,
            aws_session_token=settings.session_token,
            region_name=settings.region,
        )
        if session.get_credentials() is None:  # not kept: they may be there a moment later
            message = "no credentials for S3; give them by settings, environment, files or a role"
            raise InvalidRequestError(message)
        if settings.role_arn is not None:
            _assume(session, settings, config)
        client = session.client(
            "s3", endpoint_url=settings.endpoint_url, config=config, verify=settings.ca_bundle
        )
        AUTH_TYPE_MAPS.setdefault(_SIGNATURE, S3SigV4Auth)
        client.meta.events.register("choose-signer.s3.UploadPart", _signer)
        return Connection(client, session.get_credentials())
    except (BotoCoreError, ValueError) as error:
        raise InvalidRequestError(f"S3 can't be reached this way ({error})") from error


def _signer(signature_version: Any, signing_name: str, **_: Any) -> str | None:
    """Let botocore sign parts in Python: awscrt's signer, which it prefers, copies them."""
    return _SIGNATURE if (signature_version, signing_name) == ("v4", "s3") else None


def _assume(session: Any, settings: S3Settings, config: Any) -> None:
    """Make the session act in a role, whose credentials are renewed before they end."""
    from botocore.credentials import (  # noqa: PLC0415  # optional
        AssumeRoleCredentialFetcher,
        DeferredRefreshableCredentials,
    )

    inner = session._session  # noqa: SLF001  # boto3 has no public way to refreshing credentials
    fetcher = AssumeRoleCredentialFetcher(
        client_creator=partial(inner.create_client, config=config, verify=settings.ca_bundle),
        source_credentials=inner.get_credentials(),
        role_arn=settings.role_arn,
        extra_args={"RoleSessionName": "holdfast"},
    )
    inner._credentials = DeferredRefreshableCredentials(  # noqa: SLF001  # see above
        method="assume-role", refresh_using=fetcher.fetch_credentials
    )
