"""Each refusal of S3 is one clear error without secrets."""

import logging
import os
import pickle
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from contracts.errors import of_kind
from contracts.files import write
from contracts.s3_objects import MIB, directory, file_system, on_each_server, s3
from contracts.values import EXCLUSIVE
from servers.s3 import S3Bucket, settings_of
from servers.watched import WatchedBucket

from holdfast.errors import InvalidRequestError
from holdfast.locations import S3Settings, checkpoint_storage, complete_checkpoint, use_s3
from holdfast.locations.file_systems import S3FileSystem
from holdfast.testing import metadata_of

__all__ = ["directory", "file_system", "s3"]

SECRET = "the-secret-of-a-test"
TOKEN = "the-token-of-a-test"


@on_each_server
@pytest.mark.parametrize("call", ["publish", "create", "list", "delete", "delete_tree", "open"])
def test_missing_bucket_is_one_clear_error(
    bucket: S3Bucket, file_system: S3FileSystem, call: str
) -> None:
    uri = f"s3://{bucket.name}-missing/dir/x"
    actions: dict[str, Callable[[], object]] = {
        "publish": lambda: file_system.publish(uri, b"1"),
        "create": lambda: write(file_system, uri, b"1"),
        "list": lambda: list(file_system.list(uri)),
        "delete": lambda: file_system.delete([uri]),
        "delete_tree": lambda: file_system.delete_tree(uri),
        "open": lambda: file_system.open(uri),
    }
    with pytest.raises(InvalidRequestError, check=of_kind("no-bucket")):
        actions[call]()


@pytest.mark.parametrize("uri", ["s3:///x", "s3://Bad_Bucket!/x"])
def test_invalid_bucket_name_is_refused(file_system: S3FileSystem, uri: str) -> None:
    with pytest.raises(InvalidRequestError):
        file_system.publish(uri, b"1")
    with pytest.raises(InvalidRequestError):
        file_system.open(uri)


def test_no_credentials_are_one_clear_error(
    watched: WatchedBucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    file_system = watched.file_system(access_key=None, secret_key=None)
    for call in (
        lambda: file_system.publish(f"{watched.directory}/x", b"1"),
        lambda: file_system.open(f"{watched.directory}/x"),
        lambda: list(file_system.list(watched.directory)),
        lambda: file_system.delete([f"{watched.directory}/x"]),
        lambda: write(file_system, f"{watched.directory}/x", b"1"),
    ):
        with pytest.raises(InvalidRequestError, match="no credentials for S3"):
            call()
    assert watched.faults.requests == []


def test_missing_profile_is_one_clear_error(
    file_system: S3FileSystem, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "missing")
    file_system = S3FileSystem(S3Settings(endpoint="http://127.0.0.1:1", region="nowhere"))
    with pytest.raises(InvalidRequestError):
        file_system.publish(f"{directory}/x", b"1")


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (403, "SignatureDoesNotMatch"),
        (403, "InvalidAccessKeyId"),
        (403, "AccessDenied"),
        (400, "AuthorizationHeaderMalformed"),
        (301, "PermanentRedirect"),
        (400, "InvalidToken"),
    ],
)
@pytest.mark.parametrize("name", ["PutObject", "ListObjectsV2", "DeleteObjects", "GetObject"])
def test_refusal_of_the_store_is_one_clear_error_without_secrets(
    watched: WatchedBucket,
    status: int,
    code: str,
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    file_system = watched.file_system(secret_key=SECRET, session_token=TOKEN)
    headers = {"x-amz-bucket-region": "eu-west-1"} if status == 301 else {}
    watched.faults.answer(status, nth="every", code=code, headers=headers)
    actions: dict[str, Callable[[], object]] = {
        "PutObject": lambda: file_system.publish(f"{watched.directory}/x", b"1"),
        "ListObjectsV2": lambda: list(file_system.list(watched.directory)),
        "DeleteObjects": lambda: file_system.delete([f"{watched.directory}/x"]),
        "GetObject": lambda: file_system.open(f"{watched.directory}/x"),
    }
    with pytest.raises(InvalidRequestError) as caught:
        actions[name]()
    assert code in str(caught.value)
    assert name.removesuffix("s") in str(caught.value)  # for the policy of the bucket
    assert "credentials" in str(caught.value)
    text = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert SECRET not in text
    assert TOKEN not in text
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"checksum": "md5"}, "checksum must be .* got 'md5'"),
        ({"part_size": 5 * MIB - 1}, "part_size must be"),
        ({"concurrency": 0}, "concurrency must be >= 1"),
        ({"access_key": "a"}, "must be set together"),
        ({"secret_key": "a"}, "must be set together"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        S3Settings(**settings)


@pytest.mark.parametrize(
    "settings", [{"connect_timeout": 0.0}, {"connect_timeout": -1.0}, {"read_timeout": 0.0}]
)
def test_invalid_timeouts_are_refused_at_the_first_request(
    bucket: S3Bucket, settings: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequestError):
        S3FileSystem(settings_of(bucket.server, **settings)).publish(f"s3://{bucket.name}/x", b"1")


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "ftp//x", "http://"])
def test_endpoint_without_a_scheme_is_refused(endpoint: str) -> None:
    settings = S3Settings(endpoint=endpoint, region="x", access_key="a", secret_key=SECRET)
    with pytest.raises(InvalidRequestError) as caught:
        S3FileSystem(settings).publish("s3://bucket/x", b"1")
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_missing_file_of_certificates_is_one_clear_error(bucket: S3Bucket, tmp_path: Any) -> None:
    endpoint = bucket.server.endpoint.replace("http://", "https://")
    missing = str(tmp_path / "missing")
    settings = settings_of(bucket.server, endpoint=endpoint, ca_bundle=missing)
    with pytest.raises(InvalidRequestError):
        list(S3FileSystem(settings).list(f"s3://{bucket.name}/x"))


def test_printed_and_pickled_settings_have_no_secret(s3: S3Bucket) -> None:
    use_s3(settings_of(s3.server, secret_key=SECRET, session_token=TOKEN))
    storage = checkpoint_storage(f"s3://{s3.name}/data")
    access = storage.create_checkpoint_storage("job")
    location = access.initialize_location_for_checkpoint(1)
    with location.create_checkpoint_state_output_stream(EXCLUSIVE) as stream:
        stream.write(bytes(100_000))
        handle = stream.close_and_get_handle()
    assert handle is not None
    done = complete_checkpoint(location, metadata_of(handle))
    for thing in (storage, access, location, handle, done, done.location):
        shown = repr(thing).encode() + pickle.dumps(thing)
        assert SECRET.encode() not in shown
        assert TOKEN.encode() not in shown
    for key in s3.keys(""):
        assert SECRET.encode() not in s3.read(key)
    settings = S3Settings(access_key="name", secret_key=SECRET, session_token=TOKEN)
    for text in (repr(settings), str(settings), f"{settings}"):
        assert "name" in text
        assert SECRET not in text
        assert TOKEN not in text


def test_password_in_the_endpoint_is_not_shown() -> None:
    try:
        shown = repr(S3Settings(endpoint=f"http://user:{SECRET}@127.0.0.1:1"))
    except InvalidRequestError as error:
        shown = str(error)
    assert SECRET not in shown
