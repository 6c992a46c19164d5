"""S3 through s3fs: settings, credentials and missing libraries."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from contracts.files import write
from contracts.processes import output_of
from contracts.s3fs_buckets import (
    MIB,
    NEVER,
    SECRET,
    TOKEN,
    WatchedBucket,
    bucket,
    s3fs_bucket,
    watched_bucket,
)
from fsspec.config import conf
from servers.s3 import S3Bucket, settings_of

from holdfast.errors import InvalidRequestError, StorageUnavailableError
from holdfast.locations import S3Settings, use_s3
from holdfast.locations.adapters import file_system_for
from holdfast.locations.file_systems import S3fsFileSystem
from holdfast.spark.settings import s3_settings
from holdfast.testing import s3_operation

__all__ = ["bucket", "s3fs_bucket", "watched_bucket"]


@pytest.fixture
def s3_bucket(memory_bucket: S3Bucket) -> S3Bucket:
    """A bucket in memory: only the requests are compared."""
    return memory_bucket


def test_settings_of_a_bucket_apply_only_to_it(watched_bucket: WatchedBucket) -> None:
    watched_bucket.use(endpoint="http://127.0.0.1:1", retries=NEVER)
    use_s3(settings_of(watched_bucket.bucket.server), watched_bucket.bucket.name)
    assert list(file_system_for(watched_bucket.directory).list(watched_bucket.directory)) == []
    with pytest.raises(StorageUnavailableError):
        file_system_for("fsspec+s3://other/dir").list("fsspec+s3://other/dir")


def test_s3a_is_the_same(s3fs_bucket: S3Bucket) -> None:
    uri = f"fsspec+s3a://{s3fs_bucket.name}/x"
    write(file_system_for(uri), uri, b"1")
    assert s3fs_bucket.read("x") == b"1"


@pytest.mark.parametrize(
    ("changes", "header", "value"),
    [
        ({"server_side_encryption": "AES256"}, "x-amz-server-side-encryption", "AES256"),
        ({"storage_class": "STANDARD_IA"}, "x-amz-storage-class", "STANDARD_IA"),
        ({"requester_pays": True}, "x-amz-request-payer", "requester"),
        ({"session_token": TOKEN}, "x-amz-security-token", TOKEN),
    ],
)
@pytest.mark.parametrize("size", [1, 6 * MIB])
def test_setting_reaches_the_requests(
    watched_bucket: WatchedBucket, changes: dict[str, Any], header: str, value: str, size: int
) -> None:
    write(watched_bucket.use(part_size=5 * MIB, **changes), watched_bucket.uri, bytes(size))
    name = "PutObject" if size == 1 else "CreateMultipartUpload"
    [sent] = [request for request in watched_bucket.faults.requests if s3_operation(name)(request)]
    assert sent.headers[header] == value


def test_unset_settings_come_from_fsspec(bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    server = bucket.server
    options = {
        "endpoint_url": server.endpoint,
        "key": server.access_key,
        "secret": server.secret_key,
    }
    monkeypatch.setitem(conf, "s3", options)
    file_system = S3fsFileSystem(S3Settings(region=server.region, path_style_access=True))
    write(file_system, f"fsspec+s3://{bucket.name}/x", b"1")
    assert bucket.read("x") == b"1"


def test_settings_override_those_of_fsspec(
    watched_bucket: WatchedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {
        "endpoint_url": "http://127.0.0.1:1",
        "key": "other",
        "secret": SECRET,
        "token": TOKEN,
    }
    monkeypatch.setitem(conf, "s3", options)
    write(watched_bucket.use(), watched_bucket.uri, b"1")
    assert not any(
        "x-amz-security-token" in request.headers for request in watched_bucket.faults.requests
    )


def test_role_is_refused_with_the_way_out() -> None:
    file_system = S3fsFileSystem(S3Settings(assumed_role="arn:aws:iam::1:role/x"))
    with pytest.raises(InvalidRequestError, match="AWS_PROFILE"):
        file_system.list("fsspec+s3://bucket/dir")


def test_missing_certificates_are_not_a_missing_object(
    watched_bucket: WatchedBucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    missing = str(tmp_path / "missing")
    with pytest.raises(InvalidRequestError, match="certificates"):
        watched_bucket.use(ca_bundle=missing).open(watched_bucket.uri)
    monkeypatch.setenv("AWS_CA_BUNDLE", missing)
    with pytest.raises(InvalidRequestError):
        watched_bucket.use(endpoint="https://127.0.0.1:1").open(watched_bucket.uri)


def test_missing_credentials_are_reported(
    watched_bucket: WatchedBucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(InvalidRequestError, match="credentials"):
        watched_bucket.use(access_key=None, secret_key=None).list(watched_bucket.directory)


def test_missing_s3fs_is_reported_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(InvalidRequestError, match=r"pip install .* s3fs"):
        S3fsFileSystem(S3Settings(region="without-s3fs")).list("fsspec+s3://bucket/dir")


def test_s3fs_is_imported_only_when_it_is_needed() -> None:
    source = "import sys, holdfast.locations; print({'s3fs', 'aiobotocore'} & sys.modules.keys())"
    assert output_of(source) == "set()"


def test_sparks_settings_of_s3_are_for_it_too() -> None:
    settings = s3_settings({"spark.holdfast.s3.region": "here"}, "fsspec+s3://bucket/dir")
    assert settings == {"bucket": S3Settings(region="here")}
