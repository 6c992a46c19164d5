"""S3 as a store: the contracts of file systems and storages."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress

import pytest
from contracts.files import write
from contracts.s3_objects import MIB, content, on_each_server, put_many, s3
from contracts.values import EXCLUSIVE, read
from servers.buckets import OF_OTHERS
from servers.s3 import S3Bucket, settings_of
from servers.watched import WatchedBucket, empty

from holdfast.errors import CheckpointError, InvalidRequestError
from holdfast.locations import (
    CheckpointStorage,
    S3Settings,
    checkpoint_storage,
    complete_checkpoint,
    load_checkpoint,
    use_s3,
)
from holdfast.locations.adapters import ExclusiveFileSystem, file_system_for, unregister_file_system
from holdfast.locations.coordination import load_latest_checkpoint
from holdfast.locations.file_systems import S3FileSystem, check_exclusive
from holdfast.locations.storages import resolve_pointer
from holdfast.testing import (
    CheckpointStorageContract,
    ExclusiveFileSystemContract,
    http_faults,
    metadata_of,
)

__all__ = ["s3"]


on_moto = pytest.mark.parametrize(
    "bucket",
    [pytest.param("moto_bucket", marks=OF_OTHERS)],  # which knows roles
    indirect=True,
)


class BucketHooks:
    """Hooks of the suites for a store of objects."""

    bucket: S3Bucket

    @pytest.fixture(autouse=True)
    def _bucket(self, s3_bucket: S3Bucket) -> Iterator[None]:
        self.bucket = s3_bucket
        yield
        empty(s3_bucket)

    def _all(self, prefix: str) -> dict[str, bytes]:
        return {key.removeprefix(prefix): self.bucket.read(key) for key in self.bucket.keys(prefix)}


@pytest.mark.parametrize("s3_bucket", ["memory"], indirect=True)
class TestS3FileSystem(BucketHooks, ExclusiveFileSystemContract):
    has_directories = False
    state_files = "boto3"

    @pytest.fixture
    def file_system(self, s3_bucket: S3Bucket) -> ExclusiveFileSystem:
        return S3FileSystem(settings_of(s3_bucket.server, state_files=self.state_files))

    @pytest.fixture
    def directory(self, s3_bucket: S3Bucket) -> str:
        return f"s3://{s3_bucket.name}/dir"

    def files(self, directory: str) -> dict[str, bytes]:
        return self._all(directory.partition("://")[2].partition("/")[2] + "/")

    def put(self, uri: str, data: bytes) -> None:
        self.put_all([uri], data)

    def put_all(self, uris: Iterable[str], data: bytes) -> None:
        put_many(self.bucket, [uri.removeprefix(f"s3://{self.bucket.name}/") for uri in uris], data)


class TestObstoreS3FileSystem(TestS3FileSystem):
    state_files = "obstore"


# The suite above sends all requests of a storage, too. On MinIO and versitygw the integration tests run this one
# as well.
@pytest.mark.parametrize("s3_bucket", ["memory"], indirect=True)
class TestS3Storage(BucketHooks, CheckpointStorageContract):
    @pytest.fixture(autouse=True)
    def _use_bucket(self, s3_bucket: S3Bucket) -> Iterator[None]:
        use_s3(settings_of(s3_bucket.server, state_files="boto3"))
        yield
        unregister_file_system("s3")
        unregister_file_system("s3a")

    @pytest.fixture
    def storage(self, s3_bucket: S3Bucket) -> CheckpointStorage:
        return checkpoint_storage(f"s3://{s3_bucket.name}/data")

    def files(self, storage: CheckpointStorage) -> set[str]:
        return {f"s3://{self.bucket.name}/{key}" for key in self.bucket.keys("")}


@on_each_server
def test_checkpoint_on_s3_is_found_loaded_and_discarded_whole(s3: S3Bucket) -> None:
    storage = checkpoint_storage(f"s3://{s3.name}/data")
    access = storage.create_checkpoint_storage("job")
    location = access.initialize_location_for_checkpoint(1)
    data = os.urandom(20 * MIB)
    with location.create_checkpoint_state_output_stream(EXCLUSIVE) as stream:
        for first in range(0, len(data), 3 * MIB):
            stream.write(data[first : first + 3 * MIB])
        handle = stream.close_and_get_handle()
    assert handle is not None
    done = complete_checkpoint(location, metadata_of(handle))
    latest = load_latest_checkpoint(access)
    assert latest is not None
    assert latest.checkpoint_id == load_checkpoint(done.location).checkpoint_id == 1
    assert read(handle) == data
    done.discard()
    assert s3.keys() == []
    assert s3.uploads() == []


def test_s3_and_s3a_name_the_same_files(s3: S3Bucket) -> None:
    write(file_system_for("s3://x/"), f"s3://{s3.name}/dir/x", b"1")
    assert content(file_system_for("s3a://x/"), f"s3a://{s3.name}/dir/x") == b"1"
    [entry] = file_system_for("s3a://x/").list(f"s3a://{s3.name}/dir")
    assert entry.uri == f"s3a://{s3.name}/dir/x"
    storage = checkpoint_storage(f"S3A://{s3.name}/data")
    location = storage.create_checkpoint_storage("job").initialize_location_for_checkpoint(1)
    done = complete_checkpoint(location, metadata_of())
    pointer = done.location.external_pointer.replace("s3a://", "s3://")
    assert load_checkpoint(resolve_pointer(pointer)).checkpoint_id == 1


def test_use_s3_holds_until_other_settings_are_used(s3: S3Bucket) -> None:
    before = file_system_for("s3://x/")
    use_s3(settings_of(s3.server))
    assert file_system_for("s3://x/") is before
    for scheme in ("s3", "s3a"):
        inner = file_system_for(f"{scheme}://x/").inner
        assert isinstance(inner, S3FileSystem)
        assert inner.settings == settings_of(s3.server)
    use_s3(settings_of(s3.server, storage_class="STANDARD_IA"))
    for scheme in ("s3", "s3a"):
        inner = file_system_for(f"{scheme}://x/").inner
        assert isinstance(inner, S3FileSystem)
        assert inner.settings.storage_class == "STANDARD_IA"


@on_each_server
def test_exclusive_store_passes_the_check(s3: S3Bucket) -> None:
    check_exclusive(f"s3://{s3.name}/data")
    assert s3.keys() == []


@on_moto
def test_role_is_assumed(watched: WatchedBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", watched.bucket.server.endpoint)
    file_system = watched.file_system(assumed_role="arn:aws:iam::123456789012:role/holdfast")
    with suppress(CheckpointError):  # the role's account may have another view of the buckets
        file_system.publish(f"{watched.directory}/x", b"1")
    [sent] = watched.request_headers("PutObject")
    assert "x-amz-security-token" in sent
    assert f"Credential={watched.bucket.server.access_key}/" not in sent["authorization"]


@on_moto
def test_denied_role_is_one_clear_error(
    watched: WatchedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    with http_faults(watched.bucket.server.endpoint) as sts:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts.url)
        sts.answer(403, nth="every")
        file_system = watched.file_system(assumed_role="arn:aws:iam::123456789012:role/refused")
        with pytest.raises(InvalidRequestError) as caught:
            file_system.publish(f"{watched.directory}/x", b"1")
        assert watched.bucket.server.secret_key not in str(caught.value)


def test_missing_boto3_is_reported_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "boto3", None)
    settings = S3Settings(region="without-boto3", access_key="a", secret_key="b")
    with pytest.raises(InvalidRequestError, match="pip install"):
        S3FileSystem(settings).publish("s3://bucket/x", b"1")
