"""Which file system is behind a URI."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from holdfast.common import ProcessLock, uripath
from holdfast.errors import InvalidRequestError
from holdfast.locations.file_systems.fsspec import S3fsFileSystem, fsspec_file_system
from holdfast.locations.file_systems.hdfs import HdfsFileSystem
from holdfast.locations.file_systems.local import LocalFileSystem
from holdfast.locations.file_systems.memory import MemoryFileSystem
from holdfast.locations.file_systems.port import ExclusiveFileSystem, FileSystem
from holdfast.locations.file_systems.retries import RetryPolicy
from holdfast.locations.file_systems.retrying import RetryingExclusiveFileSystem, RetryingFileSystem
from holdfast.locations.file_systems.s3 import S3FileSystem, S3Settings
from holdfast.redaction import shown

_DEFAULT_POLICY = RetryPolicy()


@dataclass(frozen=True, slots=True)
class _S3:
    adapter: Callable[..., FileSystem]
    settings: S3Settings
    retries: RetryPolicy = _DEFAULT_POLICY

    def __call__(self) -> FileSystem:
        return self.adapter(self.settings, retries=self.retries)


@dataclass(frozen=True, slots=True)
class _Hdfs:
    options: Mapping[str, str] = field(default_factory=dict)
    retries: RetryPolicy = _DEFAULT_POLICY

    def __call__(self) -> FileSystem:
        return HdfsFileSystem(self.options, retries=self.retries)


_Registered = tuple[Callable[[], FileSystem], RetryPolicy]

_S3_SCHEMES: dict[str, Callable[..., FileSystem]] = {
    "s3": S3FileSystem,
    "s3a": S3FileSystem,
    "fsspec+s3": S3fsFileSystem,
    "fsspec+s3a": S3fsFileSystem,
}

_BUILT_IN: dict[str, _Registered] = {
    "file": (LocalFileSystem, _DEFAULT_POLICY),
    "memory": (MemoryFileSystem, _DEFAULT_POLICY),
    "hdfs": (_Hdfs(), _DEFAULT_POLICY),
    "viewfs": (_Hdfs(), _DEFAULT_POLICY),
    **{
        scheme: (_S3(adapter, S3Settings()), _DEFAULT_POLICY)
        for scheme, adapter in _S3_SCHEMES.items()
    },
}

LOCK = ProcessLock()

# By scheme, and by scheme://bucket for buckets that have settings of their own.
_FACTORIES = dict(_BUILT_IN)
_OPENED: dict[str, RetryingFileSystem] = {}


def register_file_system(
    scheme: str, factory: Callable[[], FileSystem], *, retries: RetryPolicy = _DEFAULT_POLICY
) -> None:
    """Say how to reach the URIs of a scheme, in this process; replaces what was registered.

    Args:
        scheme: The part of a URI before `://`, in any case.
        factory: Makes the adapter, once. One that can also `publish` is an `ExclusiveFileSystem`;
            any other is for a single writer.
        retries: When calls that fail are given up. What an adapter repeats inside of a call, such
            as the parts of a stream, is its own to know.
    """
    scheme = scheme.lower()
    with LOCK.current:
        _forget(scheme)
        _FACTORIES[scheme] = (factory, retries)


def use_s3(
    settings: S3Settings, bucket: str | None = None, *, retries: RetryPolicy = _DEFAULT_POLICY
) -> None:
    """Reach `s3://` and `s3a://` by these settings from now on, in this process.

    They hold for `fsspec+s3://` and `fsspec+s3a://` as well, which go through s3fs.

    A scheme for which somebody has registered an adapter of his own is left to it.

    Args:
        settings: How to reach the store.
        bucket: The bucket that they are for; without one, all that have no settings of their own.
            Whoever says it last for a bucket is right.
        retries: When calls, and parts of streams, that fail are given up.

    Raises:
        InvalidRequestError: That can't be a bucket's name.
    """
    if bucket is not None and (not bucket or "/" in bucket):
        raise InvalidRequestError(f"{shown(bucket)!r} is no bucket; give its name alone")
    with LOCK.current:
        for scheme, adapter in _S3_SCHEMES.items():
            root = scheme if bucket is None else f"{scheme}://{bucket}"
            _use(root, scheme, _S3(adapter, settings, retries))


def use_hdfs(options: Mapping[str, str], *, retries: RetryPolicy = _DEFAULT_POLICY) -> None:
    """Reach `hdfs://` and `viewfs://` by these options from now on, in this process.

    They come on top of those that were given before: queries of one driver may use several clusters.
    A scheme for which somebody has registered an adapter of his own is left to it.

    Args:
        options: Hadoop's, such as `dfs.nameservices`; they win over those in the files of
            `HADOOP_CONF_DIR`. Which NameNode is asked how often (`dfs.client.failover.*`) is for
            `retries` to say.
        retries: When calls, and the beginning and the end of streams, that fail are given up.
    """
    with LOCK.current:
        for scheme in ("hdfs", "viewfs"):
            known, _ = _FACTORIES[scheme]
            before = known.options if isinstance(known, _Hdfs) else {}
            _use(scheme, scheme, _Hdfs({**before, **options}, retries))


def _use(root: str, scheme: str, factory: _S3 | _Hdfs) -> None:
    """Register a factory for a scheme, or for a bucket of the scheme; under the lock."""
    registered: _Registered = (factory, factory.retries)
    is_ours = isinstance(_FACTORIES[scheme][0], type(factory))
    if is_ours and _FACTORIES.get(root) != registered:
        _FACTORIES[root] = registered
        _OPENED.pop(root, None)


def unregister_file_system(scheme: str) -> None:
    """Forget a scheme that was registered; a built-in one is itself again."""
    scheme = scheme.lower()
    with LOCK.current:
        _forget(scheme)
        if scheme in _BUILT_IN:
            _FACTORIES[scheme] = _BUILT_IN[scheme]


def _forget(scheme: str) -> None:
    """Forget the scheme and its buckets; under the lock."""
    for known in (_FACTORIES, _OPENED):
        for root in [root for root in known if uripath.scheme(root) == scheme]:
            del known[root]


def file_system_for(uri: str) -> RetryingFileSystem:
    """The file system of a normalized URI; it repeats what fails, as its policy says.

    Schemes that nobody registered are looked for in fsspec, as are those with `fsspec+` in front.

    Raises:
        InvalidRequestError: No file system is known for its scheme, or a library that it needs
            is missing; or there is a password in it.
    """
    if "@" in uri:  # this is asked for every file
        uripath.refuse_password(uri)
    scheme, _, rest = uri.partition("://")
    root = f"{scheme}://{rest.partition('/')[0]}"
    with LOCK.current:
        registered = _FACTORIES.get(root)
        if registered is None:
            root, registered = scheme, _FACTORIES.get(scheme)
        opened = _OPENED.get(root)
    if opened is None:
        # Not under the lock: it may import, and ask for other schemes.
        opened = _open(scheme, uri, registered)
        with LOCK.current:
            if _FACTORIES.get(root) is registered:  # nobody has said otherwise meanwhile
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
            raise InvalidRequestError(message, uri) from error
        policy = _DEFAULT_POLICY
    if isinstance(inner, ExclusiveFileSystem):
        return RetryingExclusiveFileSystem(inner, policy)
    return RetryingFileSystem(inner, policy)
