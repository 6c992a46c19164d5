"""The file system of a URI: schemes, and S3 buckets with their own settings."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import pytest
from contracts.processes import of_many_threads, run_in_fork
from hypothesis import given
from hypothesis import strategies as st
from servers.buckets import faults_before, memory_server
from servers.s3 import S3Bucket, settings_of

from holdfast.errors import InvalidRequestError, StorageUnavailableError
from holdfast.locations import S3Settings, use_s3
from holdfast.locations.adapters import (
    LocalFileSystem,
    MemoryFileSystem,
    RetryPolicy,
    file_system_for,
    register_file_system,
    unregister_file_system,
)
from holdfast.locations.file_systems import S3FileSystem, memory, registry
from holdfast.testing import s3_operation

SCHEMES = ("s3", "s3a")

NEVER = RetryPolicy(deadline_s=0)


def settings_for(uri: str) -> S3Settings:
    """The settings of the file system for a URI of S3."""
    inner = file_system_for(uri).inner
    assert isinstance(inner, S3FileSystem)
    return inner.settings


def forget() -> None:
    for scheme in (*SCHEMES, "odd"):
        unregister_file_system(scheme)


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    yield
    forget()


@pytest.fixture
def bucket_elsewhere() -> Iterator[S3Bucket]:
    with memory_server() as server, server.new_bucket() as bucket:
        yield bucket


def test_two_buckets_on_two_servers_are_reached_at_the_same_time(
    memory_bucket: S3Bucket, bucket_elsewhere: S3Bucket
) -> None:
    buckets = (memory_bucket, bucket_elsewhere)
    for bucket in buckets:
        use_s3(settings_of(bucket.server), bucket.name)

    def publish(number: int) -> None:
        bucket, scheme = buckets[number % 2], SCHEMES[number // 2 % 2]
        uri = f"{scheme}://{bucket.name}/dir/{number}"
        file_system = file_system_for(uri)
        file_system.publish(uri, b"%d" % number)  # type: ignore[attr-defined]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(publish, range(16)))
    for first, bucket in enumerate(buckets):
        written = {key: bucket.read(key) for key in bucket.keys("")}
        assert written == {f"dir/{number}": b"%d" % number for number in range(first, 16, 2)}


BUCKETS = ("one", "two", "one.two")


@given(
    calls=st.lists(
        st.tuples(st.sampled_from([None, *BUCKETS]), st.sampled_from(["eu", "us", "asia"]))
    )
)
def test_bucket_uses_its_last_settings_or_else_those_of_all(
    calls: list[tuple[str | None, str]],
) -> None:
    forget()
    known: dict[str | None, str | None] = {None: None}
    for bucket, region in calls:
        use_s3(S3Settings(region=region), bucket)
        known[bucket] = region
        for name in (*BUCKETS, "another"):
            for scheme in SCHEMES:
                settings = settings_for(f"{scheme}://{name}/dir/x")
                assert settings.region == known.get(name, known[None])


@pytest.mark.parametrize("bucket", [None, "bucket"])
def test_same_settings_again_keep_the_file_system(bucket: str | None) -> None:
    use_s3(S3Settings(region="eu"), bucket)
    opened = file_system_for("s3://bucket/x")
    use_s3(S3Settings(region="eu"), bucket)
    assert file_system_for("s3://bucket/y") is opened
    assert file_system_for("s3://bucket") is opened
    use_s3(S3Settings(region="eu"), bucket, retries=NEVER)
    assert file_system_for("s3://bucket/x") is not opened


@pytest.mark.parametrize("name", ["", "s3://bucket", "bucket/dir"])
def test_invalid_bucket_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="bucket must be a bucket name"):
        use_s3(S3Settings(), name)


def test_custom_adapter_of_s3_has_all_buckets() -> None:
    use_s3(S3Settings(region="eu"), "before")
    register_file_system("S3", MemoryFileSystem)
    use_s3(S3Settings(region="eu"), "after")
    use_s3(S3Settings(region="us"))
    for name in ("before", "after", "another"):
        assert isinstance(file_system_for(f"s3://{name}/x").inner, MemoryFileSystem)
    assert settings_for("s3a://after/x").region == "eu"
    assert settings_for("s3a://another/x").region == "us"


def test_unregistered_scheme_loses_its_buckets() -> None:
    use_s3(S3Settings(region="eu"), "bucket")
    assert settings_for("s3://bucket/x").region == "eu"
    unregister_file_system("s3")
    assert settings_for("s3://bucket/x").region == S3Settings().region
    assert settings_for("s3a://bucket/x").region == "eu"


@pytest.mark.parametrize("own", [False, True], ids=["for all buckets", "for one bucket"])
def test_retries_are_those_of_calls_and_of_parts(memory_bucket: S3Bucket, *, own: bool) -> None:
    with faults_before(memory_bucket.server) as faults:
        settings = settings_of(
            memory_bucket.server, endpoint=faults.url, part_size=5 << 20, state_files="boto3"
        )
        use_s3(settings, memory_bucket.name if own else None, retries=NEVER)
        uri = f"s3://{memory_bucket.name}/dir/x"
        faults.answer(503, s3_operation("ListObjectsV2"), nth="every")
        with pytest.raises(StorageUnavailableError):
            file_system_for(uri).list(uri)
        faults.answer(503, s3_operation("UploadPart"), nth="every")
        stream = file_system_for(uri).create(uri)
        with pytest.raises(StorageUnavailableError):
            stream.write(bytes(11 << 20))
            stream.commit()
        stream.abort()
        asked = [request for request in faults.requests if s3_operation("ListObjectsV2")(request)]
        assert len(asked) == 1
        parts = [
            request.query["partNumber"]
            for request in faults.requests
            if "partNumber" in request.query
        ]
        assert len(parts) == len(set(parts)) > 0
        faults.clear()


def test_settings_given_while_a_file_system_is_made_are_kept() -> None:
    def make() -> MemoryFileSystem:
        register_file_system("odd", LocalFileSystem)
        return MemoryFileSystem()

    register_file_system("odd", make)
    assert isinstance(file_system_for("odd:///x").inner, MemoryFileSystem)
    assert isinstance(file_system_for("odd:///x").inner, LocalFileSystem)


def test_other_schemes_have_one_file_system_for_all_hosts() -> None:
    register_file_system("odd", MemoryFileSystem)
    assert file_system_for("odd://one/x") is file_system_for("odd://two/x")


def test_unknown_scheme_is_refused_without_names_of_buckets() -> None:
    use_s3(S3Settings(), "my-bucket")
    with pytest.raises(InvalidRequestError, match="no file system for gopher://") as caught:
        file_system_for("gopher://data/x")
    assert "s3a://" in str(caught.value)
    assert "my-bucket" not in str(caught.value)


def test_printed_file_system_has_no_secret() -> None:
    use_s3(S3Settings(access_key="name", secret_key="the-secret", session_token="the-token"), "one")
    opened = file_system_for("s3://one/x")
    for shown in (repr(opened), repr(opened.inner)):
        assert "the-" not in shown


@of_many_threads
@pytest.mark.parametrize("module", [registry, memory])
def test_fork_while_another_thread_looks_something_up_does_not_hang(
    memory_directory: str, module: ModuleType
) -> None:
    with module.LOCK.current:
        assert run_in_fork(lambda: file_system_for(memory_directory).list(memory_directory)) == 0
