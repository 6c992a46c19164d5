"""`fsspec+s3://`: objects as files, through s3fs; for a single writer."""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from holdfast.common import ProcessCache
from holdfast.errors import CheckpointConflictError, CheckpointNotFoundError, InvalidRequestError
from holdfast.locations.file_systems.fsspec_stores import map_errors as map_fsspec_errors
from holdfast.locations.file_systems.port import FileOutputStream
from holdfast.locations.file_systems.retrying import RetryPolicy
from holdfast.locations.file_systems.s3_client import S3Settings, client_options
from holdfast.locations.file_systems.s3_file_system import S3Objects
from holdfast.locations.file_systems.s3_object import error_for
from holdfast.locations.file_systems.s3_streams import S3OutputStream

_READ_BYTES = 1 << 20

# Request parameters of the next page of a listing, each with its name in the answer.
_NEXT_PAGE = {
    "list_objects_v2": {"ContinuationToken": "NextContinuationToken"},
    "list_multipart_uploads": {
        "KeyMarker": "NextKeyMarker",
        "UploadIdMarker": "NextUploadIdMarker",
    },
}

CLIENTS: ProcessCache[S3Settings, "S3fsClient"] = ProcessCache()


class S3fsFileSystem(S3Objects):
    """A store with S3's protocol, reached through s3fs instead of boto3.

    Like `S3FileSystem` it commits a file in one step and deletes an aborted one. But it sends no conditions, which some
    stores reject: it checks that a name is free before it writes, and does not offer `publish`. s3fs's own files and
    listings are not used, because s3fs leaves a truncated file after a failed write and caches listings.
    """

    def __init__(self, settings: S3Settings, *, retries: RetryPolicy | None = None) -> None:
        super().__init__(replace(settings, state_files="boto3"), retries=retries)

    def create(self, uri: str, /) -> FileOutputStream:
        return _LookingStream(self._object(uri))

    @property
    def _client(self) -> Any:
        # Making a client is not thread-safe, but using one is.
        return CLIENTS.get(self.settings, lambda: S3fsClient(self.settings))


class _LookingStream(S3OutputStream):
    """Checks that the name is free, where its base class sends a condition."""

    def commit(self, *, durable_name: bool = True) -> None:
        self._check_unfinished()
        try:
            self._target.request_with_retries("head_object")
        except CheckpointNotFoundError:
            pass
        except BaseException:
            self.abort()
            raise
        else:
            self.abort()
            raise CheckpointConflictError.exists(self._target.uri)
        super().commit(durable_name=durable_name)


class S3fsClient:
    """The part of boto3's client that the adapter of `s3://` uses, through s3fs.

    It raises Holdfast errors. It does not send the condition that a name is free, and retries
    nothing; only aiohttp resends a request once if a kept connection turns out to be closed.

    Args:
        settings: How to reach the store. Unset values come from fsspec's configuration of `s3`
            (`FSSPEC_S3_KEY`, its JSON files), then from botocore.
    """

    def __init__(self, settings: S3Settings) -> None:
        try:
            from s3fs import S3FileSystem  # noqa: PLC0415  # optional
        except ImportError as error:
            message = "fsspec+s3:// needs s3fs: pip install 'holdfast[fsspec]' s3fs"
            raise InvalidRequestError(message, kind="missing-package") from error
        with map_errors("fsspec+s3://", "connect"):
            self._store: Any = S3FileSystem(**_options(settings))
        # Retries have one owner. Those of s3fs and botocore would multiply: 5 times 5 requests.
        self._store.retries = 1

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda **parameters: self._request(name, parameters)

    def close(self) -> None:
        from s3fs import S3FileSystem  # noqa: PLC0415  # optional

        if self._store._s3 is not None:  # noqa: SLF001  # not public
            S3FileSystem.close_session(self._store.loop, self._store._s3creator)  # noqa: SLF001  # s3fs has no public access to it

    def get_paginator(self, name: str) -> "_Pages":
        return _Pages(getattr(self, name), _NEXT_PAGE[name])

    def get_object(self, **parameters: Any) -> Any:
        answer = self._request("get_object", parameters)
        return {**answer, "Body": _Body(self._store.loop, answer["Body"])}

    def _request(self, name: str, parameters: dict[str, Any]) -> Any:
        parameters.pop("IfNoneMatch", None)  # some stores reject it; `commit` checks instead
        if "Body" in parameters:
            parameters["Body"] = io.BytesIO(parameters["Body"])
        with map_errors(_uri(parameters), name):
            return self._store.call_s3(name, **parameters)


class _Pages:
    """The pages of a listing."""

    def __init__(self, request: Callable[..., Any], next_page: dict[str, str]) -> None:
        self._request = request
        self._next_page = next_page

    def paginate(self, **parameters: Any) -> Iterator[Any]:
        while True:
            page = self._request(**parameters)
            yield page
            following = {
                name: page[token] for name, token in self._next_page.items() if token in page
            }
            if not page.get("IsTruncated") or not following:
                return
            parameters |= following


class _Body:
    """The unread rest of an object, read on s3fs's event loop thread."""

    def __init__(self, loop: Any, body: Any) -> None:
        self._loop = loop
        self._body = body
        self._left = memoryview(b"")

    def read(self, length: int) -> memoryview:
        from fsspec.asyn import sync  # noqa: PLC0415  # optional

        if not self._left:  # each read switches to another thread and back
            self._left = memoryview(sync(self._loop, self._body.read, _READ_BYTES))
        data, self._left = self._left[:length], self._left[length:]
        return data

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._body.close)


def _uri(parameters: dict[str, Any]) -> str:
    bucket, key = parameters["Bucket"], parameters.get("Key", parameters.get("Prefix", ""))
    return f"fsspec+s3://{bucket}/{key}"


def _options(settings: S3Settings) -> dict[str, Any]:
    """Convert settings to options of s3fs. Raises `InvalidRequestError` if it does not support them."""
    if settings.assumed_role is not None:
        message = (
            "s3fs can't assume a role; set AWS_PROFILE to a profile of ~/.aws/config with a role, or "
            "use s3:// without fsspec"
        )
        raise InvalidRequestError(message)
    options: dict[str, Any] = {
        "config_kwargs": client_options(settings),
        "use_listings_cache": False,
        "skip_instance_cache": True,
    }
    if settings.endpoint is not None:
        options["endpoint_url"] = settings.endpoint
    if settings.access_key is not None:
        options["key"] = settings.access_key
        options["secret"] = settings.secret_key
        options["token"] = settings.session_token
    client = {"region_name": settings.region, "verify": settings.ca_bundle}
    if any(client.values()):
        options["client_kwargs"] = {name: value for name, value in client.items() if value}
    return options


@contextmanager
def map_errors(uri: str, request: str) -> Iterator[None]:
    """Translate errors of s3fs by their botocore errors; `request` is botocore's method.

    s3fs uses the same classes for a missing bucket and a missing object, and for a limit and a wrong argument.
    """
    with map_fsspec_errors(uri):
        try:
            yield
        except Exception as error:
            cause = _botocore_error(error)
            if cause is not None:
                raise error_for(cause, uri, request) from cause
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
