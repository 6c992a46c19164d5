"""The file system of each URI scheme or bucket."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from holdfast.common import ProcessLock, uripath
from holdfast.errors import InvalidRequestError
from holdfast.locations.file_systems.fsspec_file_system import fsspec_file_system
from holdfast.locations.file_systems.hdfs_file_system import HdfsFileSystem
from holdfast.locations.file_systems.local import LocalFileSystem
from holdfast.locations.file_systems.memory import MemoryFileSystem
from holdfast.locations.file_systems.object_store import (
    AzureFileSystem,
    AzureSettings,
    GcsSettings,
    ObjectStoreFileSystem,
    ObjectStoreSettings,
)
from holdfast.locations.file_systems.port import (
    ExclusiveFileSystem,
    FileSystem,
    PendingUpload,
    UploadingFileSystem,
)
from holdfast.locations.file_systems.retrying import (
    RetryingExclusiveFileSystem,
    RetryingFileSystem,
    RetryPolicy,
)
from holdfast.locations.file_systems.s3_client import S3Settings
from holdfast.locations.file_systems.s3_file_system import S3FileSystem
from holdfast.locations.file_systems.s3fs import S3fsFileSystem
from holdfast.redaction import redact

_DEFAULT_POLICY = RetryPolicy()


@dataclass(frozen=True, slots=True)
class _Configured:
    """Makes a built-in adapter with the settings of this process."""

    adapter: Callable[..., FileSystem]
    settings: S3Settings | ObjectStoreSettings | Mapping[str, str]
    retries: RetryPolicy = _DEFAULT_POLICY

    def __call__(self) -> FileSystem:
        return self.adapter(self.settings, retries=self.retries)


_Registered = tuple[Callable[[], FileSystem], RetryPolicy]

_S3_SCHEMES: dict[str, Callable[..., FileSystem]] = {
    "s3": S3FileSystem,
    "s3a": S3FileSystem,
    "fsspec+s3": S3fsFileSystem,
    "fsspec+s3a": S3fsFileSystem,
}

_GCS_SCHEMES: dict[str, Callable[..., FileSystem]] = {"gs": ObjectStoreFileSystem}

_AZURE_SCHEMES: dict[str, Callable[..., FileSystem]] = {
    "az": AzureFileSystem,
    "abfs": AzureFileSystem,
    "abfss": AzureFileSystem,
}

_BUILT_IN: dict[str, _Registered] = {
    "file": (LocalFileSystem, _DEFAULT_POLICY),
    "memory": (MemoryFileSystem, _DEFAULT_POLICY),
    "hdfs": (_Configured(HdfsFileSystem, {}), _DEFAULT_POLICY),
    "viewfs": (_Configured(HdfsFileSystem, {}), _DEFAULT_POLICY),
    **{
        scheme: (_Configured(adapter, settings), _DEFAULT_POLICY)
        for adapters, settings in (
            (_S3_SCHEMES, S3Settings()),
            (_GCS_SCHEMES, GcsSettings()),
            (_AZURE_SCHEMES, AzureSettings()),
        )
        for scheme, adapter in adapters.items()
    },
}

LOCK = ProcessLock()

# By scheme, and by scheme://bucket for buckets with their own settings.
_FACTORIES = dict(_BUILT_IN)
_OPENED: dict[str, RetryingFileSystem] = {}


def register_file_system(
    scheme: str, factory: Callable[[], FileSystem], *, retries: RetryPolicy = _DEFAULT_POLICY
) -> None:
    """Register the file system of a scheme in this process, replacing an earlier one.

    Args:
        scheme: The part of a URI before `://`, in any case.
        factory: Makes the adapter; called once. An adapter that can also `publish` is an
            `ExclusiveFileSystem`; any other is for a single writer.
        retries: How long failing calls are retried. Retries inside a call, such as of the parts of
            a stream, are up to the adapter.
    """
    scheme = scheme.lower()
    with LOCK.current:
        _forget(scheme)
        _FACTORIES[scheme] = (factory, retries)


def use_s3(
    settings: S3Settings, bucket: str | None = None, *, retries: RetryPolicy = _DEFAULT_POLICY
) -> None:
    """Set the S3 settings of this process.

    They apply to `s3://` and `s3a://`, and to `fsspec+s3://` and `fsspec+s3a://`, which use s3fs.
    A scheme with a registered custom adapter is left unchanged.

    Args:
        settings: How to reach the store.
        bucket: The bucket that they apply to; without one, all buckets without their own settings.
            The last call for a bucket wins.
        retries: How long failing calls and parts of streams are retried.

    Raises:
        InvalidRequestError: `bucket` is not a valid bucket name.
    """
    _use_bucket(_S3_SCHEMES, bucket, settings, retries)


def use_gcs(
    settings: GcsSettings, bucket: str | None = None, *, retries: RetryPolicy = _DEFAULT_POLICY
) -> None:
    """Set the Google Cloud Storage settings of this process, which apply to `gs://`.

    A scheme with a registered custom adapter is left unchanged.

    Args:
        settings: How to reach the store.
        bucket: The bucket that they apply to; without one, all buckets without their own settings.
            The last call for a bucket wins.
        retries: How long failing calls and parts of streams are retried.

    Raises:
        InvalidRequestError: `bucket` is not a valid bucket name.
    """
    _use_bucket(_GCS_SCHEMES, bucket, settings, retries)


def use_azure(
    settings: AzureSettings,
    container: str | None = None,
    *,
    retries: RetryPolicy = _DEFAULT_POLICY,
) -> None:
    """Set the Azure Storage settings of this process, which apply to `az://`, `abfs://` and `abfss://`.

    A scheme with a registered custom adapter is left unchanged.

    Args:
        settings: How to reach the store.
        container: The container that they apply to, as locations name it, for example
            `container@account.dfs.core.windows.net`; without one, all containers without their own settings.
            The last call for a container wins.
        retries: How long failing calls and parts of streams are retried.

    Raises:
        InvalidRequestError: `container` is not the name of a container.
    """
    _use_bucket(_AZURE_SCHEMES, container, settings, retries)


def _use_bucket(
    schemes: Mapping[str, Callable[..., FileSystem]],
    bucket: str | None,
    settings: S3Settings | ObjectStoreSettings,
    retries: RetryPolicy,
) -> None:
    if bucket is not None and (not bucket or "/" in bucket):
        noun = "container" if schemes is _AZURE_SCHEMES else "bucket"
        message = f"{noun} must be a {noun} name such as 'my-{noun}', got {redact(bucket)!r}"
        raise InvalidRequestError(message)
    with LOCK.current:
        for scheme, adapter in schemes.items():
            root = scheme if bucket is None else f"{scheme}://{bucket}"
            _use(root, scheme, _Configured(adapter, settings, retries))


def use_hdfs(options: Mapping[str, str], *, retries: RetryPolicy = _DEFAULT_POLICY) -> None:
    """Set Hadoop options of `hdfs://` and `viewfs://` for this process.

    They are added to those of earlier calls, because queries of one driver may use several clusters.
    A scheme with a registered custom adapter is left unchanged.

    Args:
        options: Hadoop options such as `dfs.nameservices`; they override the files in `HADOOP_CONF_DIR`. Failover
            between NameNodes (`dfs.client.failover.*`) is controlled by `retries` instead.
        retries: How long failing calls, and the start and end of streams, are retried.
    """
    with LOCK.current:
        for scheme in ("hdfs", "viewfs"):
            known, _ = _FACTORIES[scheme]
            before = known.settings if isinstance(known, _Configured) else {}
            assert isinstance(before, Mapping)
            _use(scheme, scheme, _Configured(HdfsFileSystem, {**before, **options}, retries))


def _use(root: str, scheme: str, factory: _Configured) -> None:
    """Register a factory for a scheme or one of its buckets; the caller holds the lock."""
    registered: _Registered = (factory, factory.retries)
    is_ours = isinstance(_FACTORIES[scheme][0], _Configured)
    if is_ours and _FACTORIES.get(root) != registered:
        _FACTORIES[root] = registered
        _OPENED.pop(root, None)


def unregister_file_system(scheme: str) -> None:
    """Remove a registered scheme; a built-in one gets its default back."""
    scheme = scheme.lower()
    with LOCK.current:
        _forget(scheme)
        if scheme in _BUILT_IN:
            _FACTORIES[scheme] = _BUILT_IN[scheme]


def _forget(scheme: str) -> None:
    """Remove a scheme and its buckets; the caller holds the lock."""
    for known in (_FACTORIES, _OPENED):
        for root in [root for root in known if uripath.scheme(root) == scheme]:
            del known[root]


def file_system_for(uri: str) -> RetryingFileSystem:
    """Return the file system of a normalized URI, which retries failed calls by its policy.

    Unregistered schemes, and those with the prefix `fsspec+`, are looked up in fsspec.

    Raises:
        InvalidRequestError: The scheme is unknown, a library that it needs is missing, or the URI contains a password.
    """
    if "@" in uri:  # called for every file, so the cheap test comes first
        uripath.refuse_password(uri)
    scheme, _, rest = uri.partition("://")
    root = f"{scheme}://{rest.partition('/')[0]}"
    with LOCK.current:
        registered = _FACTORIES.get(root)
        if registered is None:
            root, registered = scheme, _FACTORIES.get(scheme)
        opened = _OPENED.get(root)
    if opened is None:
        # Without the lock: it may import modules and look up other schemes.
        opened = _open(scheme, uri, registered)
        with LOCK.current:
            if _FACTORIES.get(root) is registered:  # unchanged in the meantime
                opened = _OPENED.setdefault(root, opened)
    return opened


def _open(scheme: str, uri: str, registered: _Registered | None) -> RetryingFileSystem:
    if registered is not None:
        factory, policy = registered
        inner = factory()
    else:
        if "://" not in uri:
            raise InvalidRequestError(uripath.NO_SCHEME, uri)
        with LOCK.current:
            known = ", ".join(sorted(f"{name}://" for name in _FACTORIES if "://" not in name))
        try:
            inner = fsspec_file_system(scheme.removeprefix("fsspec+"))
        except InvalidRequestError as error:
            message = f"no file system for {scheme}://; built in: {known}; {error}"
            raise InvalidRequestError(message, uri, kind="location") from error
        policy = _DEFAULT_POLICY
    if isinstance(inner, ExclusiveFileSystem):
        return RetryingExclusiveFileSystem(inner, policy)
    return RetryingFileSystem(inner, policy)


def pending_uploads(uri: str) -> list[PendingUpload]:
    """Return the pending uploads in a directory and below; empty on stores without uploads."""
    file_system = file_system_for(uri)
    inner = file_system.inner
    if not isinstance(inner, UploadingFileSystem):
        return []
    return file_system.retrier.call("list_uploads", lambda: list(inner.list_uploads(uri)))


def abort_uploads(uploads: Iterable[PendingUpload]) -> None:
    """Abort uploads that `pending_uploads` has found in one store."""
    pending = list(uploads)
    if not pending:
        return
    file_system = file_system_for(pending[0].uri)
    inner = file_system.inner
    if isinstance(inner, UploadingFileSystem):
        file_system.retrier.call("abort_uploads", lambda: inner.abort_uploads(pending))
