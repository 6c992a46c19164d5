"""The files of a database in a checkpoint: their manifest, the upload of a snapshot, and the download to this host.

The manifest is a MessagePack map by field names in a `Frame` with the magic "HOLDRKDB".
"""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa

from holdfast.backends.keyed.rocksdb_errors import map_errors
from holdfast.backends.keyed.segments import (
    ROCKSDB_MAGIC,
    StoredSpec,
    finish_stream,
    handle_of_files,
    new_segment_name,
    read_manifest_bytes,
    write_manifest,
)
from holdfast.backends.keyed.table import TableSpec
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import SnapshotStreams, location_of
from holdfast.common import (
    Frame,
    KeyGroup,
    map_in_parallel,
    message_pack_decoder,
    raise_if_cancelled,
    raise_shortage,
    replace_file,
)
from holdfast.errors import CheckpointCorruptedError
from holdfast.locations.handles import FileStateHandle, SegmentsStateHandle, StreamStateHandle
from holdfast.locations.storages import CheckpointedStateScope

_FRAME = Frame(ROCKSDB_MAGIC, version=1, name="manifest of a database")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,63}")
_SORTED = ".sst"
_OPTIONS = "OPTIONS-"
"""RocksDB never reads these files, which are ten times as large as all other files without rows."""

_COPY_BYTES = 1 << 20

Files = Mapping[str, tuple[str, StreamStateHandle]]
"""Sorted files by their names in the database: the name of each among shared files, and the stored file."""


class NativeManifest(msgspec.Struct, frozen=True):
    """A stored database.

    Attributes:
        key_groups: The first and last key group of its rows.
        specs: The columns and types of the tables.
        files: The name of each sorted file among the handle's shared files, by its name in the database.
        private: The bytes of all other files, by their names.
        cursors: For tables with a time to live, the key up to which expired rows were deleted last.
    """

    key_groups: tuple[KeyGroup, KeyGroup]
    specs: tuple[StoredSpec, ...]
    files: dict[str, str]
    private: dict[str, bytes]
    cursors: dict[str, bytes]


def encode_native(manifest: NativeManifest) -> bytes:
    return _FRAME.encode(msgspec.msgpack.encode(manifest))


def decode_native(content: bytes, location: str = "") -> NativeManifest:
    """Decode a manifest. Raises `CheckpointCorruptedError` or `UnsupportedFormatError`."""
    body = _FRAME.decode(content, location)
    try:
        manifest = _DECODER.decode(body)
        _check(manifest)
    except (msgspec.MsgspecError, pa.ArrowException, OSError, ValueError) as error:
        raise_shortage(error, location)
        message = f"manifest of a database can't be decoded ({error})"
        raise CheckpointCorruptedError(message, location) from error
    return manifest


_DECODER = message_pack_decoder(NativeManifest)


def _check(manifest: NativeManifest) -> None:
    """Raise `ValueError` for invalid tables, file names that leave the directory, or a missing CURRENT file."""
    for stored in manifest.specs:
        stored.spec()
    for name in (*manifest.files, *manifest.private):
        if not _FILE.fullmatch(name):
            raise ValueError(f"invalid file name {name!r}")
    if "CURRENT" not in manifest.private:
        raise ValueError("missing file CURRENT, without which RocksDB creates a new database")


@dataclass(frozen=True, slots=True)
class StoredDatabase:
    """A database in a checkpoint; the handle's key groups can be fewer than those of its manifest."""

    handle: SegmentsStateHandle
    manifest: NativeManifest

    @property
    def streams(self) -> Files:
        """The sorted files."""
        return {
            file: (name, self.handle.segments[name]) for file, name in self.manifest.files.items()
        }

    @property
    def streams_by_file(self) -> dict[str, StreamStateHandle]:
        """The stored sorted files, by their names in the database."""
        return {file: stream for file, (_, stream) in self.streams.items()}

    def fetch(self, path: str, copies: str | None, *, max_threads: int) -> None:
        """Create the directory of the database. Raises as `map_errors` and the handle.

        Tasks of a host can share sorted files in a directory of `copies`, by their names among shared files. Copies are
        linked without verification, because RocksDB verifies the checksum of each block that it reads. Corrupted copies
        are deleted then.
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

    Raises `CheckpointNotFoundError`, `UnsupportedFormatError`, or `CheckpointCorruptedError`: also if the manifest
    refers to a file that the handle doesn't have.
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


@dataclass(frozen=True, slots=True)
class CapturedDatabase:
    """A database at the time of the snapshot.

    Attributes:
        path: A directory of hard links; empty if there was no state.
        confirmed: The files of the last confirmed checkpoint.
        restored: The files of the database that was restored, to which the checkpoint must not refer.
        cursors: As in the manifest.
        copies: A directory of hard links to sorted files, for other tasks; None if they aren't shared.
        max_threads: Number of files that are written at the same time.
    """

    checkpoint_id: int
    path: str
    key_groups: KeyGroupRange
    specs: tuple[TableSpec, ...]
    confirmed: Files
    restored: Files
    cursors: Mapping[str, bytes]
    copies: str | None
    max_threads: int

    def release(self) -> None:
        if self.path:
            shutil.rmtree(self.path, ignore_errors=True)

    def write(self, streams: SnapshotStreams) -> tuple[SegmentsStateHandle, Files]:
        """Write new sorted files, and the other files with the manifest; return the handle, and all sorted files."""
        with map_errors(self.path):
            names = sorted(os.listdir(self.path))
            private = {
                file: Path(self.path, file).read_bytes()
                for file in names
                if not file.endswith(_SORTED) and not file.startswith(_OPTIONS)
            }
        sorted_files = [file for file in names if file.endswith(_SORTED)]
        new = [file for file in sorted_files if file not in self.confirmed]
        added = self._upload(new, streams) if new else {}
        files = {file: self.confirmed.get(file) or added[file] for file in sorted_files}
        manifest = NativeManifest(
            (self.key_groups.start_key_group, self.key_groups.end_key_group),
            tuple(StoredSpec.of(spec) for spec in self.specs),
            {file: name for file, (name, _) in files.items()},
            private,
            dict(self.cursors),
        )
        kept = dict(stored for file, stored in files.items() if file not in added)
        stored = write_manifest(streams, encode_native(manifest))
        return handle_of_files(stored, self.key_groups, dict(added.values()), kept), files

    def _upload(self, files: Sequence[str], streams: SnapshotStreams) -> Files:
        """Write sorted files in parallel, and share them with other tasks if possible, which download them otherwise."""

        def upload(file: str) -> tuple[str, StreamStateHandle]:
            path = os.path.join(self.path, file)
            name = new_segment_name()
            with map_errors(self.path):
                _, origin = self.restored.get(file, (name, None))
                stored = name, _upload_file(path, streams, origin)
            if self.copies is not None:
                with suppress(OSError):
                    os.link(path, os.path.join(self.copies, name))
            return stored

        return dict(
            zip(files, map_in_parallel(upload, files, max_threads=self.max_threads), strict=True)
        )


def _upload_file(
    path: str, streams: SnapshotStreams, origin: StreamStateHandle | None
) -> StreamStateHandle:
    """Write a file; or let the store copy the file that it was restored from."""
    with streams.open(CheckpointedStateScope.SHARED) as stream:
        if isinstance(origin, FileStateHandle) and stream.adopt_stored(origin):
            return finish_stream(streams, stream)
        with open(path, "rb") as content:
            while data := content.read(_COPY_BYTES):
                stream.write(data)
                raise_if_cancelled()
        return finish_stream(streams, stream)
