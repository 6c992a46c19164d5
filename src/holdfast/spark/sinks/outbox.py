"""An outbox: rows that executors write next to a job's checkpoints, until a sink has sent them.

    <job's directory>/outbox/<sink>-<checkpoint>-<random>

A sink names the files of a batch in its state. So they count exactly if their checkpoint exists, and are deleted when they are
sent. Other files of checkpoints that exist are left by failed tasks and attempts.
"""

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame

from holdfast.common import message_pack_decoder, uripath
from holdfast.errors import CheckpointCorruptedError
from holdfast.locations.file_systems import file_system_for
from holdfast.locations.handles import FileStateHandle
from holdfast.locations.storages import (
    CheckpointedStateScope,
    CheckpointStateOutputStream,
    FileSystemCheckpointStreamFactory,
)
from holdfast.spark.settings import Stores
from holdfast.spark.worker_task import worker_task

_HANDLE = message_pack_decoder(FileStateHandle)

_COMPRESSION = "lz4"
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Outbox:
    """The files of a sink.

    Attributes:
        directory: URI of the directory, which sinks of a job share.
        sink: The sink's id.
    """

    directory: str
    sink: str

    @classmethod
    def below(cls, job_directory: str, sink: str) -> "Outbox":
        """Return the outbox of a sink of a job."""
        return cls(uripath.join(job_directory, "outbox"), sink)

    def prepare(self) -> None:
        """Create the directory, if the store has directories."""
        file_system_for(self.directory).prepare_directory(self.directory)

    def write(self, rows: DataFrame, checkpoint_id: int, stores: Stores) -> list[FileStateHandle]:
        """Write rows in one action, a file for each partition that has rows, in the order of the partitions."""
        prefix = f"{self.directory}/{self.sink}-{checkpoint_id}-"
        written = rows.mapInArrow(_WritePartition(prefix, stores), "handle binary").collect()
        return [_HANDLE.decode(row.handle) for row in written]

    def sweep(self, checkpoint_id: int) -> None:
        """Delete the files of a checkpoint and of earlier ones; the rows of all of them are sent.

        A driver that was thought dead can't complete these checkpoints, only later ones.
        """
        name = re.compile(rf"{re.escape(self.sink)}-(\d+)-[0-9a-f]+")
        file_system = file_system_for(self.directory)
        file_system.delete(
            entry.uri
            for entry in list(file_system.list(self.directory))
            if (match := name.fullmatch(uripath.name(entry.uri))) is not None
            and int(match[1]) <= checkpoint_id
        )


def read_rows(files: Sequence[FileStateHandle]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files in their order; all bytes are verified.

    Raises:
        CheckpointNotFoundError: A file is missing.
        CheckpointCorruptedError: A file is damaged.
        StorageUnavailableError: The store could not be read.
    """
    for file in files:
        with file.open_input_stream() as stream:
            try:
                # Arrow takes a short read for the end of the file.
                yield from pa.ipc.open_stream(io.BufferedReader(cast("io.RawIOBase", stream)))
            except pa.ArrowException as error:
                message = f"rows of an outbox can't be decoded ({error})"
                raise CheckpointCorruptedError(message, file.uri) from error


def delete_files(files: Iterable[FileStateHandle]) -> None:
    """Delete files; missing ones count as deleted."""
    uris = [file.uri for file in files]
    if uris:
        file_system_for(uris[0]).delete(uris)


def has_missing_files(files: Iterable[FileStateHandle]) -> bool:
    """Return whether a file was deleted already."""
    files = list(files)
    directories = {uripath.parent(file.uri) for file in files}
    there = {
        entry.uri
        for directory in directories
        for entry in file_system_for(directory).list(directory)
    }
    return not there.issuperset(file.uri for file in files)


@dataclass(frozen=True, slots=True)
class _WritePartition:
    """Writes the rows of a task to a file, and yields its handle."""

    prefix: str
    stores: Stores

    @worker_task
    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        batches = (batch for batch in batches if batch.num_rows)
        first = next(batches, None)
        if first is None:
            return
        self.stores.use()
        factory = FileSystemCheckpointStreamFactory(
            exclusive_prefix=self.prefix,
            shared_prefix=self.prefix,
            metadata_directory="",
            inline_threshold=0,
            write_buffer_bytes=_BUFFER_BYTES,
        )
        options = pa.ipc.IpcWriteOptions(compression=_COMPRESSION)
        with factory.create_checkpoint_state_output_stream(
            CheckpointedStateScope.EXCLUSIVE
        ) as stream:
            with (
                pa.PythonFile(_Writable(stream), mode="w") as sink,
                pa.ipc.new_stream(sink, first.schema, options=options) as writer,
            ):
                writer.write_batch(first)
                for batch in batches:
                    writer.write_batch(batch)
            handle = stream.close_and_get_handle()
        yield pa.record_batch({"handle": [msgspec.msgpack.encode(handle)]})


@dataclass(slots=True)
class _Writable:
    """A stream of state as Arrow wants it; closing it does not end the stream."""

    stream: CheckpointStateOutputStream
    closed: bool = False

    def write(self, data: pa.Buffer) -> int:
        return self.stream.write(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True
