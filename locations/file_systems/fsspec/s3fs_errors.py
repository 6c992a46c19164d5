"""Translation of errors of s3fs, by the botocore errors below them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.errors import InvalidRequestError
from holdfast.locations.file_systems.fsspec.fsspec_errors import map_errors as map_fsspec_errors
from holdfast.locations.file_systems.s3 import error_for


@contextmanager
def map_errors(uri: str) -> Iterator[None]:
    """Translate errors of s3fs by their botocore errors.

    s3fs uses the same classes for a missing bucket and a missing object, and for a limit and a
    wrong argument.
    """
    with map_fsspec_errors(uri):
        try:
            yield
        except Exception as error:
            cause = _botocore_error(error)
            if cause is not None:
                raise error_for(cause, uri) from cause
            if isinstance(error, FileNotFoundError):
                raise _missing_file(uri) from error
            raise


def _botocore_error(error: BaseException | None) -> Exception | None:
    """Return the botocore error that errors of s3fs, and possibly of fsspec, were raised from."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415  # optional

    while error is not None:
        if isinstance(error, BotoCoreError | ClientError):
            return _reclassify(error)
        error = error.__cause__
    return None


def _reclassify(error: Exception) -> Exception:
    from aiohttp import ClientConnectorError  # noqa: PLC0415  # optional
    from botocore.exceptions import (  # noqa: PLC0415  # optional
        ConnectionClosedError,
        EndpointConnectionError,
    )

    details: dict[str, Any] = getattr(error, "kwargs", {})
    inner = details.get("error")
    if isinstance(inner, FileNotFoundError):
        raise _missing_file("") from error
    # aiobotocore raises this for every broken connection, but the request may have arrived.
    if isinstance(error, EndpointConnectionError) and not isinstance(inner, ClientConnectorError):
        closed: Exception = ConnectionClosedError(**details)
        return closed
    return error


def _missing_file(uri: str) -> InvalidRequestError:
    """Return the error for a missing file on this machine, as opposed to S3."""
    message = "s3fs needs a local file that does not exist, such as certificates (AWS_CA_BUNDLE)"
    return InvalidRequestError(message, uri)
