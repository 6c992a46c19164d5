"""A store behind fsspec as a file system: directories, listings, deletions."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, BinaryIO, cast

from holdfast.common import SYSTEM_CLOCK, Clock, collect_failures, raise_first, uripath
from holdfast.errors import CheckpointNotFoundError, InvalidRequestError
from holdfast.locations.file_systems.fsspec import stores, times
from holdfast.locations.file_systems.fsspec.fsspec_input_stream import FsspecInputStream
from holdfast.locations.file_systems.fsspec.fsspec_output_stream import FsspecOutputStream
from holdfast.locations.file_systems.fsspec.instances import implementation, reached
from holdfast.locations.file_systems.port import FileOutputStream, FileStatus, FileSystem

# Object stores have prefixes, which can be neither made nor found missing.
_WITHOUT_DIRECTORIES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "oci", "tos", "obs"}

# Directories have permissions, and opening a file below a missing one fails by itself.
_LIKE_POSIX = {"file", "local", "sftp", "ssh"}


def fsspec_file_system(protocol: str) -> FileSystem:
    """The file system of an fsspec protocol.

    Raises:
        InvalidRequestError: fsspec doesn't know it, or a library is missing.
    """
    implementation(protocol)
    return FsspecFileSystem(protocol)


class FsspecFileSystem:
    """A store behind fsspec, as good as fsspec is; for a single writer.

    Credentials come from fsspec's configuration (`FSSPEC_SFTP_PASSWORD`, its JSON files) or from
    where the store's library looks (SSH keys and agents). SFTP servers get them only if their host
    key is in `~/.ssh/known_hosts` or `/etc/ssh/ssh_known_hosts`, unless fsspec's configuration sets
    `host_key_policy`. Each thread has its own connection, where fsspec's implementation isn't
    asynchronous, until the process ends; after an error that may have been the connection's, the
    next call makes a new one.

    What it can't promise:

    - Exclusive creation: fsspec has no such thing for all stores, so there is no `publish`, and a
      commit only looks whether the name is taken, then renames. Of two writers that do so at once,
      both may believe that they have won; only SFTP servers' renames refuse, most in one step.
    - Atomic commits: a rename is one on SFTP and local disks; on object stores, in fsspec's memory
      and others it is a copy, then a deletion, and a reader may see the file half way. The length
      is checked before and after.
    - Durable commits: nothing is synced but local files, and no directory is; else it is up to
      the server when bytes reach its disk.
    - On object stores, that a writer can't bring a deleted directory back: they have none.

    Args:
        protocol: fsspec's name of it, such as `sftp`. The URIs of calls may have another scheme.
        clock: Says when a file was changed where the store does not.
    """

    def __init__(self, protocol: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._protocol = protocol
        self._clock = clock

    def prepare_directory(self, uri: str, /) -> None:
        with reached(self._protocol, uri) as (store, path):
            if self._protocol in _WITHOUT_DIRECTORIES:
                return
            missing = stores.missing_directories(store, path, uri)
            # Nobody but the job's user reads state.
            options = {"mode": 0o700} if self._protocol in _LIKE_POSIX else {}
            for directory in missing:
                try:
                    store.mkdir(directory, create_parents=False, **options)
                except Exception:
                    # fsspec's implementations don't agree on what an existing one raises.
                    if stores.kind(store, directory) != "directory":
                        raise
            if missing and stores.kind(store, path) != "directory":
                message = f"fsspec's {self._protocol} does not make directories; use another store"
                raise InvalidRequestError(message, uri)

    def create(self, uri: str, /) -> FileOutputStream:
        if self._protocol not in _LIKE_POSIX | _WITHOUT_DIRECTORIES:
            directory = uripath.parent(uri)
            with reached(self._protocol, directory) as (store, path):
                if stores.kind(store, path) != "directory":
                    raise CheckpointNotFoundError("no such directory", directory)
        return FsspecOutputStream(self._protocol, uri)

    def open(self, uri: str, /) -> BinaryIO:
        return cast("BinaryIO", FsspecInputStream(self._protocol, uri))

    def list(self, uri: str, /) -> Iterable[FileStatus]:
        with reached(self._protocol, uri) as (store, path):
            return [
                FileStatus(
                    uri=uripath.join(uri, stores.name(entry)),
                    size=0 if entry["type"] == "directory" else entry.get("size") or 0,
                    modified_ms=times.modified_ms(store, entry, self._clock),
                    is_directory=entry["type"] == "directory",
                    is_link=stores.is_link(entry),
                )
                for entry in stores.entries(store, path)
            ]

    def delete(self, uris: Iterable[str], /) -> None:
        raise_first(collect_failures(self._delete_file, uris))

    def _delete_file(self, uri: str) -> None:
        with reached(self._protocol, uri) as (store, path):
            stores.remove(store, path)

    def delete_empty_directory(self, uri: str, /) -> None:
        with reached(self._protocol, uri) as (store, path):
            # fsspec leaves open what rmdir does with what is in a directory.
            if self._protocol in _WITHOUT_DIRECTORIES or stores.entries(store, path):
                return
            with suppress(FileNotFoundError):
                store.rmdir(path)

    def delete_tree(self, uri: str, /) -> None:
        with reached(self._protocol, uri) as (store, path):
            # File systems without the method have no links.
            if hasattr(store, "islink") and store.islink(path):
                stores.remove(store, path)
                return
            kind = stores.kind(store, path)
            if kind not in (None, "directory"):
                raise InvalidRequestError("not possible here (it is a file)", uri)
            if kind is not None:
                self._delete_below(store, path)

    def _delete_below(self, store: Any, path: str) -> None:
        # fsspec's own recursive deletion takes names with * for patterns.
        for entry in stores.entries(store, path):
            below = f"{path}/{stores.name(entry)}"
            if entry["type"] == "directory" and not stores.is_link(entry):
                self._delete_below(store, below)
            else:
                stores.remove(store, below)
        if self._protocol not in _WITHOUT_DIRECTORIES:
            with suppress(FileNotFoundError):
                store.rmdir(path)
