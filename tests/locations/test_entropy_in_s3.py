"""State files with random characters in their paths, in an S3 bucket: all of them are deleted."""

import re
from collections.abc import Iterator

import pytest
from contracts.checkpointed_jobs import assert_complete, files_of, job_in, write_state
from contracts.entropy import (
    GRACE,
    RANDOM,
    write_checkpoint,
)
from contracts.processes import python
from servers.buckets import MemoryBucket
from servers.s3 import S3Bucket, settings_of

from holdfast.common import uripath
from holdfast.locations import sweep, use_s3
from holdfast.locations.adapters import (
    unregister_file_system,
)


@pytest.fixture
def s3_directory(memory_bucket: S3Bucket) -> Iterator[str]:
    use_s3(settings_of(memory_bucket.server, part_size=5 << 20))
    yield f"s3://{memory_bucket.name}/holdfast/_entropy_"
    unregister_file_system("s3")
    unregister_file_system("s3a")


def test_bucket_is_empty_after_its_checkpoints_failed_or_were_deleted(
    memory_bucket: S3Bucket, s3_directory: str
) -> None:
    access = job_in(s3_directory)
    done = write_checkpoint(access, 1)
    assert re.fullmatch(rf"s3://{memory_bucket.name}/holdfast/\.\w\w/job/.*", files_of(done)[0].uri)
    failed = access.initialize_location_for_checkpoint(2)
    attempt = uripath.name(write_state(failed).uri)[:9]
    key = f"holdfast/.a3/job/chk-2/{attempt}{RANDOM}"
    memory_bucket.client.create_multipart_upload(Bucket=memory_bucket.name, Key=key)
    failed.dispose_on_failure()
    assert_complete(done)
    assert memory_bucket.uploads() == []
    assert len(memory_bucket.keys()) == 4
    done.discard()
    assert memory_bucket.keys() == []


def test_files_of_a_killed_process_in_a_bucket_are_swept(
    memory_bucket: MemoryBucket, s3_directory: str
) -> None:
    source = """
import sys
from holdfast.locations import *
from holdfast.locations.adapters import *
directory, endpoint, access_key, secret_key = sys.argv[1:]
use_s3(S3Settings(endpoint=endpoint, region="us-east-1", path_style_access=True,
    access_key=access_key, secret_key=secret_key, part_size=5 << 20))
access = checkpoint_storage(directory).create_checkpoint_storage("job")
location = access.initialize_location_for_checkpoint(2)
for scope in CheckpointedStateScope:
    with location.create_checkpoint_state_output_stream(scope) as stream:
        stream.write(bytes(100_000))
        stream.close_and_get_handle()
streams = [location.create_checkpoint_state_output_stream(one) for one in CheckpointedStateScope]
for stream in streams:
    stream.write(bytes(6 << 20))
    stream.sync()
print("ready", flush=True)
sys.stdin.readline()
"""
    kept = write_checkpoint(job_in(s3_directory), 1)
    before = memory_bucket.keys()
    server = memory_bucket.server
    with python(
        source, s3_directory, server.endpoint, server.access_key, server.secret_key
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
        process.kill()
        process.communicate()
    assert len(memory_bucket.keys()) == len(before) + 2
    assert len(memory_bucket.uploads()) == 2
    memory_bucket.age(2 * GRACE)
    report = sweep(s3_directory, "job", grace_s=GRACE)
    assert (len(report.files), len(report.uploads)) == (2, 2)
    assert memory_bucket.keys() == before
    assert memory_bucket.uploads() == []
    assert_complete(kept)
