"""s3fs in the place of boto3's client: the same requests, sent by aiobotocore."""

import io
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.common import ProcessCache
from holdfast.errors import InvalidRequestError
from holdfast.locations.file_systems.fsspec.s3fs_errors import translated
from holdfast.locations.file_systems.s3 import S3Settings, client_options

_READ_BYTES = 1 << 20

# By what the next page of a listing is asked for, and what the answer calls it.
_NEXT_PAGE = {
    "list_objects_v2": {"ContinuationToken": "NextContinuationToken"},
    "list_multipart_uploads": {
        "KeyMarker": "NextKeyMarker",
        "UploadIdMarker": "NextUploadIdMarker",
    },
}

CLIENTS: ProcessCache[S3Settings, "S3fsClient"] = ProcessCache()


def s3fs_client_for(settings: S3Settings) -> "S3fsClient":
    """The client of this process.

    Raises:
        InvalidRequestError: s3fs is missing, or can't do what the settings want.
    """
    return CLIENTS.get(settings, lambda: S3fsClient(settings))


class S3fsClient:
    """The part of boto3's client that the adapter of `s3://` uses, through s3fs.

    Errors are ours already. That a name has to be free is not sent, and nothing is repeated but what
    aiohttp sends again, once, when a connection that it had kept turns out to be closed.

    Args:
        settings: How to reach the store. What they leave open is for fsspec's configuration of
            `s3` to say (`FSSPEC_S3_KEY`, its JSON files), then for botocore to find.
    """

    def __init__(self, settings: S3Settings) -> None:
        try:
            from s3fs import S3FileSystem  # noqa: PLC0415  # optional
        except ImportError as error:
            message = "fsspec+s3:// needs s3fs: pip install 'holdfast[fsspec]' s3fs"
            raise InvalidRequestError(message) from error
        with translated("fsspec+s3://"):
            self._store: Any = S3FileSystem(**_options(settings))
        # One owner of retries, and that is neither s3fs nor botocore below it: 5 times 5 requests.
        self._store.retries = 1

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda **parameters: self._request(name, parameters)

    def close(self) -> None:
        from s3fs import S3FileSystem  # noqa: PLC0415  # optional

        if self._store._s3 is not None:  # noqa: SLF001  # nothing public says
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
        parameters.pop("IfNoneMatch", None)  # some stores don't take it; whoever commits looks
        with translated(_uri(parameters)):
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
    """The unread rest of an object, read on the thread of s3fs's requests."""

    def __init__(self, loop: Any, body: Any) -> None:
        self._loop = loop
        self._body = body
        self._left = memoryview(b"")

    def read(self, length: int) -> memoryview:
        from fsspec.asyn import sync  # noqa: PLC0415  # optional

        if not self._left:  # each time it goes to another thread and back
            self._left = memoryview(sync(self._loop, self._body.read, _READ_BYTES))
        data, self._left = self._left[:length], self._left[length:]
        return data

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._body.close)


def _uri(parameters: dict[str, Any]) -> str:
    bucket, key = parameters["Bucket"], parameters.get("Key", parameters.get("Prefix", ""))
    return f"fsspec+s3://{bucket}/{key}"


def _options(settings: S3Settings) -> dict[str, Any]:
    """The options of s3fs that say what the settings say.

    Raises:
        InvalidRequestError: s3fs can't do what the settings want.
    """
    if settings.assumed_role is not None:
        message = (
            "s3fs assumes no role; name a profile of ~/.aws/config that has one (AWS_PROFILE), or "
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
