"""Objects as files through obstore, published by conditional PUT."""

from collections.abc import Iterable, Sequence
from typing import BinaryIO, cast

from holdfast.common import ProcessCache, map_in_parallel, raise_first, uripath
from holdfast.errors import CheckpointError, InvalidRequestError, StorageUnavailableError
from holdfast.locations.file_systems.object_store.objects import (
    Bucket,
    StoredObject,
    check_process,
    error_for,
    request,
)
from holdfast.locations.file_systems.object_store.settings import ObjectStoreSettings
from holdfast.locations.file_systems.object_store.streams import (
    ObjectInputStream,
    ObjectOutputStream,
    read_range,
)
from holdfast.locations.file_systems.port import FileOutputStream, FileStatus
from holdfast.locations.file_systems.retrying import Retrier, RetryPolicy

_DELETED_AT_A_TIME = 1000  # obstore splits them into batches of Azure, and sends those concurrently

_LISTED_AT_A_TIME = 1000


_BUCKETS: ProcessCache[tuple[ObjectStoreSettings, RetryPolicy, str], Bucket] = ProcessCache()


class ObjectStoreFileSystem:
    """Files as the objects of a store that obstore supports.

    There are no directories: preparing one does nothing, and a writer can always write. A file appears, and is
    durable, once it is committed.

    Args:
        settings: How to reach the store.
        retries: How long parts and the end of a stream are retried; whole calls are retried by
            `file_system_for`, as for every store.
    """

    range_requests = 64

    def __init__(
        self, settings: ObjectStoreSettings, *, retries: RetryPolicy | None = None
    ) -> None:
        self.settings = settings
        self._retries = retries or RetryPolicy()
        self._retrier = Retrier(self._retries)

    def prepare_directory(self, uri: str, /) -> None:
        self._object(uri)

    def create(self, uri: str, /) -> FileOutputStream:
        return ObjectOutputStream(
            self._object(uri),
            self._retrier,
            part_bytes=self.settings.part_size,
            concurrency=self.settings.concurrency,
        )

    def open(self, uri: str, /) -> BinaryIO:
        return cast("BinaryIO", ObjectInputStream(self._object(uri)))

    def read_range(self, uri: str, start: int, end: int, /) -> memoryview:
        return read_range(self._object(uri), start, end)

    def publish(self, uri: str, data: bytes, /) -> None:
        self._object(uri).put_if_free(data)

    def copy(self, source: str, uri: str, /) -> None:
        from obstore import copy  # noqa: PLC0415  # optional

        origin, target = self._object(source), self._object(uri)
        if origin.bucket is not target.bucket:
            message = "the store can copy only files of the same bucket or container"
            raise InvalidRequestError(message, source, kind="location")
        target.request("copy", lambda store, key: copy(store, origin.key, key))

    def list(self, uri: str, /) -> Iterable[FileStatus]:
        from obstore import list_with_delimiter  # noqa: PLC0415  # optional

        target = self._object(uri)
        listing = target.request("list", lambda store, key: list_with_delimiter(store, key or None))
        directories = [
            FileStatus(uripath.join(uri, uripath.name(path)), 0, 0, is_directory=True)
            for path in listing["common_prefixes"]
        ]
        files = [
            FileStatus(
                uri=uripath.join(uri, uripath.name(entry["path"])),
                size=int(entry["size"]),
                modified_ms=int(entry["last_modified"].timestamp() * 1000),
                is_directory=False,
            )
            for entry in listing["objects"]
            if entry["path"] != target.key  # a marker that some tools create for a directory
        ]
        return directories + files

    def delete(self, uris: Iterable[str], /) -> None:
        targets: dict[Bucket, list[StoredObject]] = {}
        for uri in uris:
            target = self._object(uri)
            targets.setdefault(target.bucket, []).append(target)
        failures = [
            failure
            for inside in targets.values()
            for first in range(0, len(inside), _DELETED_AT_A_TIME)
            for failure in _delete(inside[first : first + _DELETED_AT_A_TIME])
        ]
        # Retriable failures come first, so that the whole call is retried.
        failures.sort(key=lambda failure: not isinstance(failure, StorageUnavailableError))
        raise_first(failures)

    def delete_empty_directory(self, uri: str, /) -> None:
        """Do nothing: there are no directories."""

    def delete_tree(self, uri: str, /) -> None:
        from obstore import list as list_all  # noqa: PLC0415  # optional

        target = self._object(uri)
        pages = list_all(target.bucket.store, target.key or None, chunk_size=_LISTED_AT_A_TIME)
        root = uri.removesuffix(uripath.local_path(uri))
        while (page := request(uri, "list", lambda: next(pages, None))) is not None:
            self.delete(uripath.join(root, entry["path"]) for entry in page)

    def _object(self, uri: str) -> StoredObject:
        authority = uri.partition("://")[2].partition("/")[0]
        if not authority:
            message = f"location has no bucket; write {uripath.scheme(uri)}://bucket/path"
            raise InvalidRequestError(message, uri, kind="location")
        check_process(uri)
        bucket = _BUCKETS.get(
            (self.settings, self._retries, authority),
            lambda: Bucket(
                lambda **options: self.settings.open_store(authority, **options), self._retries
            ),
        )
        return StoredObject(bucket, uri, uripath.local_path(uri).strip("/"))


def _delete(targets: Sequence[StoredObject]) -> list[CheckpointError]:
    """Delete objects of one bucket; returns the failures. Missing objects are not failures."""
    from obstore import delete  # noqa: PLC0415  # optional

    try:
        delete(targets[0].bucket.store, [target.key for target in targets])
    except Exception as error:  # noqa: BLE001  # obstore has many classes
        failure = error_for(error, targets[0].uri, "delete")
        if isinstance(failure, StorageUnavailableError):
            return [failure]
        # It is about one of them, and obstore may not have tried the others.
        failures = map_in_parallel(_delete_one, targets)
        return [failure for failure in failures if failure is not None]
    return []


def _delete_one(target: StoredObject) -> CheckpointError | None:
    try:
        target.delete()
    except CheckpointError as failure:
        return failure
    return None
