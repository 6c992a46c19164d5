"""A database in a checkpoint: its files brought to this host."""

import os
from contextlib import suppress
from dataclasses import dataclass

from holdfast.backends.keyed.rocksdb.native_manifest import NativeManifest, decode_native
from holdfast.backends.keyed.rocksdb.rocksdb_errors import translated
from holdfast.backends.keyed.segments import ROCKSDB_MAGIC, read_manifest_bytes
from holdfast.backends.sections import location_of
from holdfast.common import map_in_parallel, raise_if_cancelled, replace_file
from holdfast.errors import CheckpointCorruptedError
from holdfast.locations.handles import SegmentsStateHandle, StreamStateHandle

_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class StoredDatabase:
    """A database, as a handle leads to it.

    Attributes:
        handle: The handle; of its key groups alone rows count.
        manifest: The files that the database is made of.
    """

    handle: SegmentsStateHandle
    manifest: NativeManifest

    @property
    def streams(self) -> dict[str, tuple[str, StreamStateHandle]]:
        """The sorted files, by their names in the database: the name of each among shared files, and the file."""
        return {
            file: (name, self.handle.segments[name]) for file, name in self.manifest.files.items()
        }

    @property
    def streams_by_file(self) -> dict[str, StreamStateHandle]:
        """The sorted files in storage, by their names in the database."""
        return {file: stream for file, (_, stream) in self.streams.items()}

    def fetch(self, path: str, copies: str | None, *, at_a_time: int) -> None:
        """Make the database's directory.

        Args:
            path: The directory, which is new.
            copies: Where sorted files are as other tasks have left them, by their names among shared files, and
                are left for others; None if nowhere. What is there is linked, and not looked at: each block of
                it has a checksum, which RocksDB verifies as it reads. A damaged copy is deleted when that is seen.
            at_a_time: How many files are downloaded at the same time.

        Raises:
            CheckpointNotFoundError: A file is gone.
            CheckpointCorruptedError: A file is not what was written.
            StorageFullError: The disk has no room for them.
            StorageUnavailableError: Storage or the disk doesn't do it.
        """

        def download(file: str) -> None:
            name, stream = streams[file]
            target = os.path.join(path, file)
            _download(stream, target)
            if copies is not None:
                _leave(target, os.path.join(copies, name))

        streams = self.streams
        with translated(path):
            os.mkdir(path, mode=0o700)
            lacking = [
                file
                for file, (name, stream) in streams.items()
                if copies is None
                or not _is_linked(os.path.join(copies, name), os.path.join(path, file), stream.size)
            ]
            if lacking:
                map_in_parallel(download, lacking, max_threads=at_a_time)
            for file, content in self.manifest.private.items():
                with open(os.path.join(path, file), "xb") as private:
                    private.write(content)


def stored_database(handle: SegmentsStateHandle) -> StoredDatabase | None:
    """The database that a handle leads to; None if it leads to segments.

    Raises:
        CheckpointNotFoundError: The manifest is gone.
        CheckpointCorruptedError: The manifest is damaged, or names a file that the handle doesn't lead to.
        UnsupportedFormatError: A newer Holdfast wrote it.
    """
    content = read_manifest_bytes(handle)
    if not content.startswith(ROCKSDB_MAGIC):
        return None
    location = location_of(handle.manifest)
    manifest = decode_native(content, location)
    missing = set(manifest.files.values()) - handle.segments.keys()
    if missing:
        message = f"manifest names files {sorted(missing)}, which its handle doesn't lead to"
        raise CheckpointCorruptedError(message, location)
    return StoredDatabase(handle, manifest)


def _is_linked(copy: str, target: str, size: int) -> bool:
    """Make the target of a copy, if there is a whole one; it may be deleted by others at any time until then."""
    try:
        os.link(copy, target)
    except FileNotFoundError:
        return False
    if os.stat(target).st_size == size:
        return True
    os.unlink(target)
    return False


def _leave(path: str, copy: str) -> None:
    """Let other tasks have a file, also in the place of a copy that was cut off."""
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
