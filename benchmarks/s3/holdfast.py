"""Holdfast's own state streams."""

from benchmarks.s3.works import CHUNK_BYTES, CONCURRENCY, PART_BYTES, Bucket, chunks
from holdfast.locations import FileSystemCheckpointStorage, S3Settings, use_s3
from holdfast.locations.adapters import CheckpointedStateScope, StreamStateHandle


class Holdfast:
    """State streams of a pending checkpoint, with Holdfast's checksums; its disposal deletes.

    Args:
        root: URI of the bucket.
    """

    def __init__(self, root: str) -> None:
        self._root = root

    def begin(self, prefix: str) -> None:
        storage = FileSystemCheckpointStorage(f"{self._root}/{prefix}", inline_threshold=0)
        access = storage.create_checkpoint_storage("job")
        self._location = access.initialize_location_for_checkpoint(1)

    def write(self, number: int, file_bytes: int) -> StreamStateHandle:  # noqa: ARG002  # it names files
        stream = self._location.create_checkpoint_state_output_stream(
            CheckpointedStateScope.EXCLUSIVE
        )
        with stream:
            for chunk in chunks(file_bytes):
                stream.write(chunk)
            handle = stream.close_and_get_handle()
        if handle is None:
            raise ValueError("the state is empty")
        return handle

    def read(self, written: StreamStateHandle, file_bytes: int) -> int:  # noqa: ARG002  # it knows
        total = 0
        with written.open_input_stream() as stream:
            while part := stream.read(CHUNK_BYTES):
                total += len(part)
        return total

    def delete(self) -> None:
        self._location.dispose_on_failure()


def on_s3(bucket: Bucket, state_files: str) -> Holdfast:
    """Return the engine for a bucket of S3.

    Args:
        bucket: Where.
        state_files: As in `S3Settings`.
    """
    settings = S3Settings(
        endpoint=bucket.endpoint,
        region=bucket.region,
        path_style_access=True,
        access_key=bucket.access_key,
        secret_key=bucket.secret_key,
        part_size=PART_BYTES,
        concurrency=CONCURRENCY,
        state_files=state_files,
    )
    use_s3(settings, bucket=bucket.name)
    return Holdfast(f"s3://{bucket.name}")
