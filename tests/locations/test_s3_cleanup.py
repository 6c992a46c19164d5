"""A bucket after failures: no object and no unfinished upload is left."""

from collections.abc import Iterator
from datetime import datetime

import pytest
from contracts.s3_objects import later
from contracts.values import EXCLUSIVE, read
from servers.s3 import S3Bucket, settings_of

from holdfast.locations import checkpoint_storage, complete_checkpoint, sweep, use_s3
from holdfast.locations.adapters import (
    CheckpointedStateScope,
    CheckpointStorageAccess,
    FileStateHandle,
    file_system_for,
    unregister_file_system,
)
from holdfast.testing import metadata_of

RANDOM = "0123456789abcdef" * 2


@pytest.fixture
def directory(s3_bucket: S3Bucket) -> Iterator[str]:
    """A directory in a bucket, reached by `s3://`."""
    use_s3(settings_of(s3_bucket.server, part_size=5 << 20))
    yield f"s3://{s3_bucket.name}/data"
    unregister_file_system("s3")
    unregister_file_system("s3a")


@pytest.fixture
def access(directory: str) -> CheckpointStorageAccess:
    access = checkpoint_storage(directory).create_checkpoint_storage("job")
    access.initialize_base_locations_for_checkpoint()
    return access


def start_upload(bucket: S3Bucket, key: str) -> None:
    """Start an upload, as a killed writer leaves it."""
    bucket.client.create_multipart_upload(Bucket=bucket.name, Key=key)


def test_failed_attempt_leaves_no_file(
    s3_bucket: S3Bucket,
    access: CheckpointStorageAccess,
) -> None:
    failed, other = (access.initialize_location_for_checkpoint(1) for _ in range(2))
    names = []
    for location in (failed, other):
        with location.create_checkpoint_state_output_stream(EXCLUSIVE) as stream:
            stream.write(bytes(6 << 20))
            handle = stream.close_and_get_handle()
        assert isinstance(handle, FileStateHandle)
        names.append(handle.uri.rpartition("/")[2])
    for name in names:
        start_upload(s3_bucket, f"data/job/chk-1/{name[:9]}{RANDOM}")
    failed.dispose_on_failure()
    assert s3_bucket.keys() == [f"data/job/chk-1/{names[1]}"]
    assert [key for key, _ in s3_bucket.uploads()] == [f"data/job/chk-1/{names[1][:9]}{RANDOM}"]


def test_discarded_checkpoint_leaves_nothing_below_it(
    s3_bucket: S3Bucket,
    access: CheckpointStorageAccess,
) -> None:
    location = access.initialize_location_for_checkpoint(1)
    with location.create_checkpoint_state_output_stream(EXCLUSIVE) as stream:
        stream.write(bytes(6 << 20))
        handle = stream.close_and_get_handle()
    assert handle is not None
    done = complete_checkpoint(location, metadata_of(handle))
    assert read(handle) == bytes(6 << 20)
    start_upload(s3_bucket, f"data/job/chk-1/01234567-{RANDOM}")
    start_upload(s3_bucket, f"data/job/chk-10/01234567-{RANDOM}")
    done.discard()
    assert s3_bucket.keys() == []
    assert [key for key, _ in s3_bucket.uploads()] == [f"data/job/chk-10/01234567-{RANDOM}"]


def test_sweep_aborts_abandoned_uploads(
    s3_bucket: S3Bucket,
    access: CheckpointStorageAccess,
    directory: str,
) -> None:
    if s3_bucket.server.name == "moto":
        pytest.skip("moto reports 2010 as the start of every upload")
    location = access.initialize_location_for_checkpoint(1)
    complete_checkpoint(location, metadata_of())
    with location.create_checkpoint_state_output_stream(CheckpointedStateScope.SHARED) as stream:
        stream.write(bytes(100_000))
        orphan = stream.close_and_get_handle()
    ours = {f"data/job/chk-2/01234567-{RANDOM}", f"data/job/shared/{RANDOM}"}
    theirs = {"data/job/chk-2/notes", f"data/other/chk-2/01234567-{RANDOM}"}
    for key in ours | theirs:
        start_upload(s3_bucket, key)

    young = sweep(directory, "job")
    assert (young.files, young.uploads, young.within_grace) == ((), (), 3)

    with later(directory, seconds=7200):
        looked = sweep(directory, "job", grace_s=3600, dry_run=True)
        swept = sweep(directory, "job", grace_s=3600)
    assert (looked.files, looked.uploads) == (swept.files, swept.uploads)
    assert {upload.uri for upload in swept.uploads} == {
        f"s3://{s3_bucket.name}/{key}" for key in ours
    }
    assert [file.uri for file in swept.files] == [getattr(orphan, "uri", None)]
    assert {key for key, _ in s3_bucket.uploads()} == theirs


def test_age_of_an_upload_uses_the_clock_of_the_store(
    s3_bucket: S3Bucket,
    directory: str,
) -> None:
    start_upload(s3_bucket, f"data/job/chk-2/01234567-{RANDOM}")
    inner = file_system_for(directory).inner
    (upload,) = inner.list_uploads(f"{directory}/job")  # type: ignore[attr-defined]
    (known,) = s3_bucket.client.list_multipart_uploads(Bucket=s3_bucket.name)["Uploads"]
    initiated: datetime = known["Initiated"]
    assert upload.started_ms == int(initiated.timestamp() * 1000)
    assert upload.upload_id == known["UploadId"]
