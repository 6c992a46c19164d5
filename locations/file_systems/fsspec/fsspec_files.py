"""A store reached through fsspec: directories, listings, deletions."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, BinaryIO, cast

from holdfast.common import SYSTEM_CLOCK, Clock, collect_failures, raise_first, uripath
from holdfast.errors import CheckpointNotFoundError, InvalidRequestError
from holdfast.locations.file_systems.fsspec import stores
from holdfast.locations.file_systems.fsspec.fsspec_streams import (
    FsspecInputStream,
    FsspecOutputStream,
)
from holdfast.locations.file_systems.fsspec.instances import implementation, locked_store
from holdfast.locations.file_systems.port import FileOutputStream, FileStatus, FileSystem

# Object stores have only prefixes, which are never created and never missing.
_WITHOUT_DIRECTORIES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "oci", "tos", "obs"}

# Directories have permissions, and opening a file below a missing one fails by itself.
_LIKE_POSIX = {"file", "local", "sftp", "ssh"}


def fsspec_file_system(protocol: str) -> FileSystem:
    """Make the file system of an fsspec protocol.

    Raises:
        InvalidRequestError: fsspec doesn't support it, or a library is missing.
    """
    implementation(protocol)
    return FsspecFileSystem(protocol)


class FsspecFileSystem:
    """A store reached through fsspec, with the guarantees that fsspec gives; for a single writer.

    Credentials come from fsspec's configuration (`FSSPEC_SFTP_PASSWORD`, its JSON files) or from
    the store's library (SSH keys and agents). SFTP servers get them only if their host key is in
    `~/.ssh/known_hosts` or `/etc/ssh/ssh_known_hosts`, unless fsspec's configuration sets
    `host_key_policy`. If fsspec's implementation is not asynchronous, each thread keeps its own
    connection until the process ends; after an error of the connection, the next call makes a new one.

    Not guaranteed:

    - Exclusive creation: fsspec does not offer it for all stores, so `publish` is missing, and a
      commit checks that the name is free, then renames. If two writers do so at once, both may
      believe that they have won; only SFTP servers refuse the second rename, most of them atomically.
    - Atomic commits: a rename is atomic on SFTP and local disks. On object stores, in fsspec's memory
      and on other stores it is a copy and a deletion, and a reader may see an incomplete file. The
      length is checked before and after.
    - Durable commits: only local files are synced, and directories are not; elsewhere the server
      decides when bytes reach its disk.
    - Deleted directories: object stores have no directories, so a late writer can restore one.

    Args:
        protocol: fsspec's name of the protocol, such as `sftp`. URIs of calls may have another scheme.
        clock: The source of modification times where the store has none.
    """

    def __init__(self, protocol: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._protocol = protocol
        self._clock = clock

    def prepare_directory(self, uri: str, /) -> None:
        with locked_store(self._protocol, uri) as (store, path):
            if self._protocol in _WITHOUT_DIRECTORIES:
                return
            missing = stores.missing_directories(store, path, uri)
            # Only the job's user may read state.
            options = {"mode": 0o700} if self._protocol in _LIKE_POSIX else {}
            for directory in missing:
                try:
                    store.mkdir(directory, create_parents=False, **options)
                except Exception:
                    # For an existing directory, fsspec's implementations raise different errors.
                    if stores.kind(store, directory) != "directory":
                        raise
            if missing and stores.kind(store, path) != "directory":
                message = f"fsspec's {self._protocol} can't create directories; use another store"
                raise InvalidRequestError(message, uri)

    def create(self, uri: str, /) -> FileOutputStream:
        if self._protocol not in _LIKE_POSIX | _WITHOUT_DIRECTORIES:
            directory = uripath.parent(uri)
            with locked_store(self._protocol, directory) as (store, path):
                if stores.kind(store, path) != "directory":
                    raise CheckpointNotFoundError("no such directory", directory)
        return FsspecOutputStream(self._protocol, uri)

    def open(self, uri: str, /) -> BinaryIO:
        return cast("BinaryIO", FsspecInputStream(self._protocol, uri))

    def list(self, uri: str, /) -> Iterable[FileStatus]:
        with locked_store(self._protocol, uri) as (store, path):
            return [
                FileStatus(
                    uri=uripath.join(uri, stores.name(entry)),
                    size=0 if entry["type"] == "directory" else entry.get("size") or 0,
                    modified_ms=stores.modified_ms(store, entry, self._clock),
                    is_directory=entry["type"] == "directory",
                    is_link=stores.is_link(entry),
                )
                for entry in stores.entries(store, path)
            ]

    def delete(self, uris: Iterable[str], /) -> None:
        raise_first(collect_failures(self._delete_file, uris))

    def _delete_file(self, uri: str) -> None:
        with locked_store(self._protocol, uri) as (store, path):
            stores.remove(store, path)

    def delete_empty_directory(self, uri: str, /) -> None:
        with locked_store(self._protocol, uri) as (store, path):
            # fsspec does not define what rmdir does with a directory that is not empty.
            if self._protocol in _WITHOUT_DIRECTORIES or stores.entries(store, path):
                return
            with suppress(FileNotFoundError):
                store.rmdir(path)

    def delete_tree(self, uri: str, /) -> None:
        with locked_store(self._protocol, uri) as (store, path):
            # File systems without the method do not support links.
            if hasattr(store, "islink") and store.islink(path):
                stores.remove(store, path)
                return
            kind = stores.kind(store, path)
            if kind not in (None, "directory"):
                raise InvalidRequestError("directory can't be deleted (it is a file)", uri)
            if kind is not None:
                self._delete_below(store, path)

    def _delete_below(self, store: Any, path: str) -> None:
        # fsspec's own recursive deletion treats names with * as patterns.
        for entry in stores.entries(store, path):
            below = f"{path}/{stores.name(entry)}"
            if entry["type"] == "directory" and not stores.is_link(entry):
                self._delete_below(store, below)
            else:
                stores.remove(store, below)
        if self._protocol not in _WITHOUT_DIRECTORIES:
            with suppress(FileNotFoundError):
                store.rmdir(path)
