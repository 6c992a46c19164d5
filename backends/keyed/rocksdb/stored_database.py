"""A database in a checkpoint, and its download to this host."""

import os
from contextlib import suppress
from dataclasses import dataclass

from holdfast.backends.keyed.rocksdb.native_manifest import NativeManifest, decode_native
from holdfast.backends.keyed.rocksdb.rocksdb_errors import map_errors
from holdfast.backends.keyed.segments import ROCKSDB_MAGIC, read_manifest_bytes
from holdfast.backends.snapshot import location_of
from holdfast.common import map_in_parallel, raise_if_cancelled, replace_file
from holdfast.errors import CheckpointCorruptedError
from holdfast.locations.handles import SegmentsStateHandle, StreamStateHandle

_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class StoredDatabase:
    """A database in a checkpoint.

    Attributes:
        handle: Its handle, whose key groups can be fewer than the database's.
        manifest: Its manifest.
    """

    handle: SegmentsStateHandle
    manifest: NativeManifest

    @property
    def streams(self) -> dict[str, tuple[str, StreamStateHandle]]:
        """The sorted files by their names in the database: the name of each among shared files, and the stored file."""
        return {
            file: (name, self.handle.segments[name]) for file, name in self.manifest.files.items()
        }

    @property
    def streams_by_file(self) -> dict[str, StreamStateHandle]:
        """The stored sorted files, by their names in the database."""
        return {file: stream for file, (_, stream) in self.streams.items()}

    def fetch(self, path: str, copies: str | None, *, max_threads: int) -> None:
        """Create the directory of the database.

        Args:
            path: The new directory.
            copies: A directory of sorted files that tasks of this host share, by their names among shared files; None
                if they share none. Copies are linked without verification, because RocksDB verifies the checksum of
                each block that it reads. Corrupted copies are deleted then.
            max_threads: Number of files that are downloaded at the same time.

        Raises:
            CheckpointNotFoundError: A file is missing.
            CheckpointCorruptedError: A file is corrupted.
            StorageFullError: The disk is full.
            StorageUnavailableError: Storage or the disk failed.
        """

        def download(file: str) -> None:
            name, stream = streams[file]
            target = os.path.join(path, file)
            _download(stream, target)
            if copies is not None:
                _share(target, os.path.join(copies, name))

        streams = self.streams
        with map_errors(path):
            os.mkdir(path, mode=0o700)
            missing = [
                file
                for file, (name, stream) in streams.items()
                if copies is None
                or not _try_link(os.path.join(copies, name), os.path.join(path, file), stream.size)
            ]
            if missing:
                map_in_parallel(download, missing, max_threads=max_threads)
            for file, content in self.manifest.private.items():
                with open(os.path.join(path, file), "xb") as private:
                    private.write(content)


def stored_database(handle: SegmentsStateHandle) -> StoredDatabase | None:
    """Read the manifest of a handle's database; None if the handle's rows are in segments.

    Raises:
        CheckpointNotFoundError: The manifest is missing.
        CheckpointCorruptedError: The manifest is corrupted, or refers to a file that the handle doesn't have.
        UnsupportedFormatError: The manifest was written by a newer Holdfast.
    """
    content = read_manifest_bytes(handle)
    if not content.startswith(ROCKSDB_MAGIC):
        return None
    location = location_of(handle.manifest)
    manifest = decode_native(content, location)
    missing = set(manifest.files.values()) - handle.segments.keys()
    if missing:
        message = f"manifest refers to files {sorted(missing)}, which its handle doesn't have"
        raise CheckpointCorruptedError(message, location)
    return StoredDatabase(handle, manifest)


def _try_link(copy: str, target: str, size: int) -> bool:
    """Link a complete copy to the target. Returns False without a complete copy; others can delete it at any time."""
    try:
        os.link(copy, target)
    except FileNotFoundError:
        return False
    if os.stat(target).st_size == size:
        return True
    os.unlink(target)
    return False


def _share(path: str, copy: str) -> None:
    """Share a file with other tasks; replaces a truncated copy."""
    with suppress(FileExistsError):
        os.link(path, copy)
        return
    with replace_file(copy) as unfinished:
        os.link(path, unfinished)


def _download(stream: StreamStateHandle, path: str) -> None:
    with stream.open_input_stream() as source, open(path, "xb") as target:
        while data := source.read(_COPY_BYTES):
            target.write(data)
            raise_if_cancelled()
