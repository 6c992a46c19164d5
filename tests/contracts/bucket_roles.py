"""The work of drivers and executors in a bucket of checkpoints, which their policies must allow."""

import uuid

from contracts.values import EXCLUSIVE, read
from servers.s3 import S3Bucket

from holdfast.locations import (
    FileSystemCheckpointStorage,
    complete_checkpoint,
    latest_checkpoint,
    load_checkpoint,
    sweep,
)
from holdfast.locations.adapters import (
    CheckpointStorageLocationReference,
    CheckpointStreamFactory,
    StreamStateHandle,
)
from holdfast.locations.coordination import CheckpointsCleaner, CompletedCheckpointStore
from holdfast.locations.storages import FileSystemCheckpointStorageAccess, resolve_pointer
from holdfast.testing import metadata_of

PART = 5 << 20
"""The smallest size of a part; a longer object is uploaded in parts."""

IN_PARTS = bytes(PART) + b"state"

SMALL = b"state"


def drive(directory: str, bucket: S3Bucket) -> None:
    """Do the work of a driver: claim, checkpoints, retention, a failure, a savepoint, sweep, restore."""
    access = _job(directory)
    access.initialize_base_locations_for_checkpoint()
    ownership = access.claim_job()
    cleaner = CheckpointsCleaner()
    store = CompletedCheckpointStore(1, cleaner)
    for checkpoint_id in (1, 2):
        location = access.initialize_location_for_checkpoint(checkpoint_id)
        metadata = metadata_of(_write(location, SMALL), checkpoint_id=checkpoint_id)
        store.add(complete_checkpoint(location, metadata, ownership))
    cleaner.close()
    _, _, prefix = directory.removeprefix("s3://").partition("/")
    assert not bucket.keys(f"{prefix}/job/chk-1/"), "an old checkpoint is left"

    failed = access.initialize_location_for_checkpoint(3)
    _write(failed, SMALL)
    _begin_upload(failed.factory.exclusive_prefix, bucket)
    failed.dispose_on_failure()
    assert not bucket.keys(f"{prefix}/job/chk-3/"), "a failed checkpoint is left"
    assert not bucket.uploads(prefix), "the upload of a killed task is left"

    pending = access.initialize_location_for_savepoint(3)
    complete_checkpoint(pending, metadata_of(_write(pending, SMALL), checkpoint_id=3), ownership)
    sweep(directory, "job", savepoint_directory=f"{directory}/savepoints")

    newest = latest_checkpoint(directory, "job")
    assert newest is not None
    assert newest.checkpoint_id == 2
    savepoint = load_checkpoint(resolve_pointer(pending.external_pointer))
    for checkpoint in (newest, savepoint):
        assert [read(stream) for stream in checkpoint.metadata.streams()] == [SMALL]
    access.claim_job()


def execute(directory: str, bucket: S3Bucket) -> StreamStateHandle:
    """Do the work of a task: abort a state stream, write state, and read it."""
    factory = _job(directory).resolve_checkpoint_storage_location(
        1, CheckpointStorageLocationReference()
    )
    with factory.create_checkpoint_state_output_stream(EXCLUSIVE) as aborted:
        aborted.write(IN_PARTS)
    assert not bucket.uploads(), "an aborted upload is left"
    handle = _write(factory, IN_PARTS)
    assert read(handle) == IN_PARTS
    return handle


def _job(directory: str) -> FileSystemCheckpointStorageAccess:
    storage = FileSystemCheckpointStorage(
        directory, inline_threshold=0, savepoint_directory=f"{directory}/savepoints"
    )
    return storage.create_checkpoint_storage("job")


def _write(factory: CheckpointStreamFactory, state: bytes) -> StreamStateHandle:
    with factory.create_checkpoint_state_output_stream(EXCLUSIVE) as stream:
        stream.write(state)
        handle = stream.close_and_get_handle()
    assert handle is not None
    return handle


def _begin_upload(uri_prefix: str, bucket: S3Bucket) -> None:
    """Leave an upload, like a task that is killed while it writes a state file."""
    key = uri_prefix.removeprefix(f"s3://{bucket.name}/") + uuid.uuid4().hex
    bucket.client.create_multipart_upload(Bucket=bucket.name, Key=key)
