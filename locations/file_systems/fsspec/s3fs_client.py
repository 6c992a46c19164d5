"""A replacement of boto3's client by s3fs: the same requests, sent by aiobotocore."""

import io
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.common import ProcessCache
from holdfast.errors import InvalidRequestError
from holdfast.locations.file_systems.fsspec.s3fs_errors import map_errors
from holdfast.locations.file_systems.s3 import S3Settings, client_options

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


def s3fs_client_for(settings: S3Settings) -> "S3fsClient":
    """Return the client of this process.

    Raises:
        InvalidRequestError: s3fs is missing, or does not support the settings.
    """
    return CLIENTS.get(settings, lambda: S3fsClient(settings))


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
            raise InvalidRequestError(message) from error
        with map_errors("fsspec+s3://"):
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
            S3FileSystem.close_session(self._store.loop, self._store._s3creator)  # noqa: SLF001

    def get_paginator(self, name: str) -> "_Pages":
        return _Pages(getattr(self, name), _NEXT_PAGE[name])

    def put_object(self, *, Body: bytes | bytearray, **parameters: Any) -> Any:  # noqa: N803  # S3's
        return self._request("put_object", {**parameters, "Body": io.BytesIO(Body)})

    def upload_part(self, *, Body: bytes | bytearray, **parameters: Any) -> Any:  # noqa: N803  # S3's
        return self._request("upload_part", {**parameters, "Body": io.BytesIO(Body)})

    def get_object(self, **parameters: Any) -> Any:
        answer = self._request("get_object", parameters)
        return {**answer, "Body": _Body(self._store.loop, answer["Body"])}

    def _request(self, name: str, parameters: dict[str, Any]) -> Any:
        parameters.pop("IfNoneMatch", None)  # some stores reject it; `commit` checks instead
        with map_errors(_uri(parameters)):
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
    """Convert settings to options of s3fs.

    Raises:
        InvalidRequestError: s3fs does not support the settings.
    """
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
