"""Translates errors of s3fs by the botocore errors below them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.errors import InvalidRequestError
from holdfast.locations.file_systems.fsspec.fsspec_errors import translated as translated_by_fsspec
from holdfast.locations.file_systems.s3 import error_for


@contextmanager
def translated(uri: str) -> Iterator[None]:
    """Turn errors of s3fs into ours, by what botocore says.

    s3fs's own don't tell a missing bucket from a missing object, nor a limit from a wrong argument.
    """
    with translated_by_fsspec(uri):
        try:
            yield
        except Exception as error:
            cause = _botocores(error)
            if cause is not None:
                raise error_for(cause, uri) from cause
            if isinstance(error, FileNotFoundError):
                raise _missing_file(uri) from error
            raise


def _botocores(error: BaseException | None) -> Exception | None:
    """The error of botocore that s3fs has put its own around, and fsspec maybe around that."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415  # optional

    while error is not None:
        if isinstance(error, BotoCoreError | ClientError):
            return _honest(error)
        error = error.__cause__
    return None


def _honest(error: Exception) -> Exception:
    from aiohttp import ClientConnectorError  # noqa: PLC0415  # optional
    from botocore.exceptions import (  # noqa: PLC0415  # optional
        ConnectionClosedError,
        EndpointConnectionError,
    )

    details: dict[str, Any] = getattr(error, "kwargs", {})
    inner = details.get("error")
    if isinstance(inner, FileNotFoundError):
        raise _missing_file("") from error
    # aiobotocore says so of every connection that breaks, but then the request may have arrived.
    if isinstance(error, EndpointConnectionError) and not isinstance(inner, ClientConnectorError):
        closed: Exception = ConnectionClosedError(**details)
        return closed
    return error


def _missing_file(uri: str) -> InvalidRequestError:
    """The error for a file on this machine, and not in S3, that is not there."""
    message = "a file that s3fs needs is not there, such as that of certificates (AWS_CA_BUNDLE)"
    return InvalidRequestError(message, uri)
