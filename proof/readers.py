"""The readers of stored bytes, each with valid inputs for `bad_bytes` to change.

Checksums would refuse nearly all changed inputs before they are decoded. So the content is changed, and the checksums
are updated; a change of the checksum itself remains.
"""

import struct
import tarfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from holdfast import flink
from holdfast.backends import ListStateDescriptor, OperatorStateBackend
from holdfast.backends.keyed.segments import read_tables, write_tables
from holdfast.backends.keyed.table import Identities, TableRows, TableSpec
from holdfast.backends.keys import KeyGroupRange
from holdfast.backends.snapshot import SnapshotStreams
from holdfast.common import crc32c
from holdfast.errors import CheckpointError, InvalidRequestError
from holdfast.locations import FileSystemCheckpointStorage, checkpoint_storage
from holdfast.locations.file_systems import file_system_for, publish
from holdfast.locations.handles import (
    ByteStreamStateHandle,
    OperatorStateHandle,
    SegmentsStateHandle,
    StreamStateHandle,
)
from holdfast.locations.metadata import decode_metadata, encode_metadata
from holdfast.locations.storages import CompletedCheckpoint, resolve_pointer
from holdfast.spark_progress import (
    SPARK,
    SPARK_FILES,
    SparkProgress,
    history_of,
    next_history,
    progress_of,
    spark_files_of,
)

_DATA = Path(__file__).parents[1] / "tests" / "data"
_METADATA = _DATA / "v1"
_FLINK = _DATA / "flink" / "state-job.tar.xz"
_GROUPS = KeyGroupRange(0, 7)
_SAVEPOINT = "memory:///bad-bytes/savepoint-job-0123456789ab"
_PREFIX = b"memory:///bad-bytes/"
_NAME = "0" * 32
"""The name of the segment, instead of its random one."""
_ZLIB = zlib.compress(b"", 1)[:2]
_HEADER, _END = 64, 20  # bytes of a segment before its first section, and after its trailer

READERS = (
    "`_metadata`",
    "pointers and URIs",
    "operator state",
    "manifests",
    "segments",
    "Flink's savepoints",
)
"""Names of all readers, in order."""

Read = Callable[[bytes], object]


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader.

    Attributes:
        whole: Inputs by name that are valid once they are sealed.
        read: Reads an input completely. Only `CheckpointError` may be raised.
        seal: Updates the checksums of changed bytes, and their compression.
    """

    whole: Mapping[str, bytes]
    read: Read
    seal: Callable[[bytes], bytes] = bytes


def readers(scratch: Path) -> dict[str, Reader]:
    """Return all readers by name.

    Args:
        scratch: An empty directory for readers of files.
    """
    storage = FileSystemCheckpointStorage("memory:///bad-bytes", inline_threshold=1 << 20)
    access = storage.create_checkpoint_storage("job")
    access.initialize_base_locations_for_checkpoint()
    streams = SnapshotStreams(access.initialize_location_for_checkpoint(1))
    files = sorted(file for file in _METADATA.glob("_metadata*") if file.suffix != ".json")
    metadata = {file.name: _of_a_query(file) for file in files}
    metadata["uncompressed"] = _in_version_2(metadata["_metadata-of-segments"])
    metadata["compressed"] = _of_a_query(files[0], padding=" " * (40 << 10))
    segments = _segments(streams)
    operator = _operator_state(access.initialize_location_for_checkpoint(2))
    (segment,) = segments.segments.values()
    store = file_system_for(_SAVEPOINT)
    for directory in (f"{_PREFIX.decode()}job/chk-7", _SAVEPOINT):
        store.prepare_directory(directory)
        if not store.list(directory):
            publish(f"{directory}/_metadata", metadata["_metadata"], single_writer=True)
    return {
        "`_metadata`": Reader(metadata, _read_metadata, _sealed_metadata),
        "pointers and URIs": Reader(
            {"pointer": _PREFIX + b"job/chk-7/_metadata", "savepoint": _SAVEPOINT.encode()},
            _read_pointer,
        ),
        "operator state": Reader(
            {"lists": _inside(operator.stream)}, partial(_read_operator_state, operator)
        ),
        "manifests": Reader(
            {"manifest": _inside(segments.manifest)},
            partial(_read_manifest, segments),
            _with_checksum,
        ),
        "segments": Reader({"segment": _inside(segment)}, partial(_read_segment, segments), _seal),
        "Flink's savepoints": Reader(_flink_savepoints(), partial(_read_flink, scratch)),
    }


def _of_a_query(file: Path, padding: str = "") -> bytes:
    """Return a golden file with the additions of a query on Spark: its progress, and the history of 200 checkpoints.

    With much padding it is compressed.
    """
    metadata = decode_metadata(file.read_bytes(), _SAVEPOINT, uri=file.name)
    progress = SparkProgress(
        query_id="query",
        run_id="run",
        batch_id=206,
        offsets='v1\n{"batchWatermarkMs":0,"batchTimestampMs":1}\n{"logOffset":206}',
        checkpoint_location="file:///spark",
        spark_version="4.3.0" + padding,
    )
    states = {SPARK: msgspec.msgpack.encode(progress)}
    latest = None
    for number in range(200):
        earlier = msgspec.structs.replace(
            metadata, checkpoint_id=number, created_ms=1000 * number, coordinator_states=states
        )
        latest = CompletedCheckpoint(earlier, _Place(), 1000)  # type: ignore[arg-type]  # as below
        states = {SPARK: states[SPARK], **next_history(latest, ())}
    whole = msgspec.structs.replace(metadata, checkpoint_id=200, coordinator_states=states)
    return encode_metadata(whole, _SAVEPOINT)


class _Place:
    external_pointer = _SAVEPOINT


def _read_metadata(content: bytes) -> None:
    metadata = decode_metadata(content, _SAVEPOINT, uri=f"{_SAVEPOINT}/_metadata")
    completed = CompletedCheckpoint(metadata, _Place(), len(content))  # type: ignore[arg-type]  # only its pointer is used
    errors = []
    for read in (
        lambda: SPARK in metadata.coordinator_states and progress_of(metadata).times,
        lambda: history_of([completed]),
        lambda: SPARK_FILES in metadata.coordinator_states and spark_files_of(metadata, _SAVEPOINT),
        lambda: metadata.state_bytes,
    ):
        try:
            read()
        except CheckpointError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _read_pointer(content: bytes) -> None:
    text = content.decode("utf-8", "surrogateescape")
    errors = []
    # Other stores would use a network; `tests/test_redaction.py` tests the part before the path.
    if not text.startswith(_PREFIX.decode()):
        raise InvalidRequestError("another store")
    for read in (resolve_pointer, checkpoint_storage):
        try:
            read(text)
        except CheckpointError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _read_operator_state(handle: OperatorStateHandle, content: bytes) -> None:
    stream = ByteStreamStateHandle(content)
    backend = OperatorStateBackend.restore([msgspec.structs.replace(handle, stream=stream)])
    for name, type_ in (("numbers", pa.int64()), ("texts", pa.string())):
        list(backend.get_list_state(ListStateDescriptor(name, type_)).get())


def _read_manifest(handle: SegmentsStateHandle, content: bytes) -> None:
    _read_tables(msgspec.structs.replace(handle, manifest=ByteStreamStateHandle(content)))


def _read_segment(handle: SegmentsStateHandle, content: bytes) -> None:
    (name,) = handle.segments
    segments = {name: ByteStreamStateHandle(content)}
    _read_tables(msgspec.structs.replace(handle, segments=segments))


def _read_tables(handle: SegmentsStateHandle) -> None:
    for table in read_tables([handle], _GROUPS):
        for rows in table.rows():
            for array in rows.values:
                with suppress(UnicodeDecodeError):  # text may be any bytes, as it may in Spark
                    array.to_pylist()


def _flink_savepoints() -> dict[str, bytes]:
    with tarfile.open(_FLINK) as archive:
        files = [archive.extractfile(member) for member in archive if member.isfile()]
        return {f"{number}": file.read() for number, file in enumerate(files) if file is not None}


def _read_flink(directory: Path, content: bytes) -> None:
    (directory / "_metadata").write_bytes(content)
    savepoint = flink.open_savepoint(directory)
    errors = []
    for row in savepoint.states().to_pylist():
        if row["state"] is None:
            continue
        try:
            savepoint.read_state(row["operator"], row["state"], kind=row["kind"])
        except CheckpointError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _operator_state(location: object) -> OperatorStateHandle:
    backend = OperatorStateBackend()
    backend.get_list_state(ListStateDescriptor("numbers", pa.int64())).add_all(range(500))
    texts = backend.get_list_state(ListStateDescriptor("texts", pa.string()))
    texts.add_all([f"text {number}" * (number % 5) for number in range(200)])
    (handle,) = backend.snapshot(location).run().state.managed_operator  # type: ignore[arg-type]  # of any storage
    return handle


def _segments(streams: SnapshotStreams) -> SegmentsStateHandle:
    """Write two tables of a few hundred rows, of fixed width and of lists of texts."""
    key = pa.schema([("k", pa.string())])
    counts = TableSpec("counts", "value", key, pa.schema([("value", pa.int64())]))
    notes = TableSpec("notes", "value", key, pa.schema([("value", pa.list_(pa.string()))]))
    sort_keys = np.sort(np.random.default_rng(1).integers(0, 8 << 48, 300, np.uint64))
    identities = Identities(sort_keys, (pa.array([f"key {number}" for number in range(300)]),))
    values = pa.array(range(300), pa.int64())
    texts = pa.array([["a", "b" * (number % 7)] for number in range(300)])
    written = write_tables(
        [
            (counts, [TableRows(identities, (values,), None)]),
            (notes, [TableRows(identities, (texts,), None)]),
        ],
        _GROUPS,
        streams,
    )
    if not isinstance(written, SegmentsStateHandle):
        raise TypeError("tables with rows make segments")
    ((name, segment),) = written.segments.items()
    manifest = _inside(written.manifest).replace(name.encode(), _NAME.encode())
    return msgspec.structs.replace(
        written,
        manifest=ByteStreamStateHandle(_with_checksum(manifest)),
        segments={_NAME: segment},
    )


def _inside(stream: StreamStateHandle) -> bytes:
    """Return the bytes of inline state."""
    if not isinstance(stream, ByteStreamStateHandle):
        raise TypeError(f"{stream} is not inside its handle")
    return stream.data


def _with_checksum(content: bytes) -> bytes:
    return content[:-4] + struct.pack(">I", crc32c(content[:-4]))


def _in_version_2(content: bytes) -> bytes:
    """Return metadata of version 1 as the input that `_sealed_metadata` compresses."""
    return content[:8] + struct.pack(">I", 2) + content[12:]


def _sealed_metadata(content: bytes) -> bytes:
    """Return metadata with valid length and checksum, in version 2 compressed unless it is already.

    So changes reach the records in it. In an input that is compressed, they reach the compression; its length is kept.
    """
    head, body = content[:12], content[20:-4]
    length = struct.pack(">Q", len(body))
    if head[8:] == struct.pack(">I", 2):
        if body.startswith(_ZLIB):
            return _with_checksum(content)
        body = zlib.compress(body, 1)
    return _with_checksum(head + length + body + content[-4:])


def _seal(content: bytes) -> bytes:
    """Return a segment with valid checksums of its trailer, and of its blocks if the trailer is readable."""
    if len(content) < _HEADER + _END:
        return content
    (length,) = struct.unpack(">I", content[-_END : 4 - _END])
    start = len(content) - _END - length
    if start < _HEADER:
        return content
    trailer = content[start : start + length]
    try:
        fields = msgspec.msgpack.decode(trailer)
        width = fields["block_bytes"]
        blocks = [content[at : min(at + width, start)] for at in range(0, start, width)]
        fields["blocks"] = b"".join(struct.pack(">I", crc32c(block)) for block in blocks)
        trailer = msgspec.msgpack.encode(fields)
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError, ValueError):
        pass  # the trailer must be refused unchanged
    end = trailer + struct.pack(">I", len(trailer)) + content[4 - _END : -4]
    return content[:start] + end + struct.pack(">I", crc32c(end))
