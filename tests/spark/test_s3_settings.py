"""How to reach S3: Holdfast's settings, Hadoop's for the same, and two queries with different ones."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path

import pytest
from contracts.patience import HANGS_S
from jobs.job import Job
from jobs.operators import Groups
from pyspark.sql import DataFrame, SparkSession
from servers.s3 import S3Bucket

from holdfast.errors import InvalidRequestError
from holdfast.locations import S3Settings
from holdfast.locations.adapters import unregister_file_system
from holdfast.spark.settings import Settings, s3_settings_table

SECRET = "the-secret-of-a-test"

Given = dict[str, str]


def s3_of(*, own: Given | None = None, s3a: Given | None = None) -> S3Settings:
    """What is read for the bucket `data.one`.

    Args:
        own: Settings without `spark.holdfast.s3.`.
        s3a: Settings without `spark.hadoop.fs.s3a.`.
    """
    given = {
        "spark.holdfast.checkpoint.dir": " S3A://data.one//dir ",
        **{f"spark.holdfast.s3.{key}": value for key, value in (own or {}).items()},
        **{f"spark.hadoop.fs.s3a.{key}": value for key, value in (s3a or {}).items()},
    }
    read = Settings.parse(given).stores.s3
    assert list(read) == ["data.one"]
    return read["data.one"]


def refusal(**given: Given) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        s3_of(**given)
    return str(caught.value)


def test_fields_of_s3_settings_are_named_like_the_settings() -> None:
    settings = [setting.key.removeprefix("s3.") for setting in s3_settings_table()]
    assert {key.replace("-", "_") for key in settings} == {
        field.name for field in fields(S3Settings)
    }


def test_every_setting_of_s3_is_read() -> None:
    own = {
        "endpoint": "http://127.0.0.1:1",
        "region": "eu-central-1",
        "path-style-access": "TRUE",
        "access-key": "name",
        "secret-key": SECRET,
        "session-token": "token",
        "assumed-role": "arn:role",
        "server-side-encryption": "SSE-KMS",
        "kms-key": "key",
        "storage-class": "standard_ia",
        "checksum": "CRC32",
        "part-size": "6m",
        "concurrency": "2",
        "connect-timeout": "2m",
        "read-timeout": "90s",
        "state-files": "BOTO3",
        "requester-pays": "true",
        "ca-bundle": "/ca",
    }
    assert s3_of(own=own) == S3Settings(
        endpoint="http://127.0.0.1:1",
        region="eu-central-1",
        path_style_access=True,
        access_key="name",
        secret_key=SECRET,
        session_token="token",
        assumed_role="arn:role",
        server_side_encryption="aws:kms",
        kms_key="key",
        storage_class="STANDARD_IA",
        checksum="crc32",
        part_size=6 << 20,
        concurrency=2,
        connect_timeout=120.0,
        read_timeout=90.0,
        state_files="boto3",
        requester_pays=True,
        ca_bundle="/ca",
    )
    assert {f"s3.{key}" for key in own} == {setting.key for setting in s3_settings_table()}


@pytest.mark.parametrize("directory", ["file:///x", "hdfs://data.one/x", "s3:///x", ""])
def test_without_a_bucket_there_is_nothing_to_reach(directory: str) -> None:
    given = {
        "spark.holdfast.checkpoint.dir": directory,
        "spark.hadoop.fs.s3a.encryption.algorithm": "SSE-C",  # somebody else's
    }
    assert Settings.parse(given).stores.s3 == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("part-size", "2 bananas"),
        ("part-size", "1m"),
        ("checksum", "bananas"),
        ("state-files", "bananas"),
        ("connect-timeout", "0s"),
        ("read-timeout", "20"),
        ("access-key", "name"),
    ],
)
def test_a_wrong_setting_is_refused_even_where_nothing_is_in_s3(key: str, value: str) -> None:
    given = {"spark.holdfast.checkpoint.dir": "file:///x", f"spark.holdfast.s3.{key}": value}
    with pytest.raises(InvalidRequestError, match=rf"spark\.holdfast\.s3\.{key}"):
        Settings.parse(given)


def test_right_settings_are_taken_where_nothing_is_in_s3() -> None:
    given = {
        "spark.holdfast.checkpoint.dir": "file:///x",
        "spark.holdfast.s3.kms-key": "key",
        "spark.holdfast.s3.checksum": "off",
        "spark.hadoop.fs.s3a.access.key": "name",  # somebody else's
    }
    assert Settings.parse(given).stores.s3 == {}


# What Hadoop says


ALL_OF_S3A = {
    "endpoint": "http://127.0.0.1:1",
    "endpoint.region": "eu-central-1",
    "path.style.access": "true",
    "access.key": "name",
    "secret.key": SECRET,
    "session.token": "token",
    "assumed.role.arn": "arn:role",
    "encryption.algorithm": "SSE-KMS",
    "encryption.key": "key",
    "create.storage.class": "intelligent_tiering",
    "requester.pays.enabled": "true",
}
ALL_READ = S3Settings(
    endpoint="http://127.0.0.1:1",
    region="eu-central-1",
    path_style_access=True,
    access_key="name",
    secret_key=SECRET,
    session_token="token",
    assumed_role="arn:role",
    server_side_encryption="aws:kms",
    kms_key="key",
    storage_class="INTELLIGENT_TIERING",
    requester_pays=True,
)

OF_THE_BUCKET = "bucket.data.one."

OLD_NAMES = {
    "encryption.algorithm": "server-side-encryption-algorithm",
    "encryption.key": "server-side-encryption.key",
}


@pytest.mark.parametrize("prefix", ["", OF_THE_BUCKET], ids=["general", "of the bucket"])
def test_hadoops_settings_are_taken_where_ours_say_nothing(prefix: str) -> None:
    given = {f"{prefix}{key}": f" {value} " for key, value in ALL_OF_S3A.items()}
    assert s3_of(s3a=given) == ALL_READ
    assert s3_of(own={"region": "us"}, s3a=given).region == "us"


@pytest.mark.parametrize("key", ALL_OF_S3A)
def test_an_option_of_the_bucket_wins_over_the_general_one(key: str) -> None:
    general = {**ALL_OF_S3A, key: "false" if ALL_OF_S3A[key] == "true" else "http://another"}
    given = general | {OF_THE_BUCKET + key: ALL_OF_S3A[key]}
    assert s3_of(s3a=given) == ALL_READ


def test_options_of_other_buckets_are_not_taken() -> None:
    given = {
        f"bucket.{bucket}.{key}": value
        for bucket in ("data", "data.one.two", "one", "data-one", "*")
        for key, value in ALL_OF_S3A.items()
    }
    assert s3_of(s3a=given) == S3Settings()


def test_an_empty_option_of_the_bucket_takes_the_general_one_away() -> None:
    given = ALL_OF_S3A | {f"{OF_THE_BUCKET}session.token": "", f"{OF_THE_BUCKET}endpoint": " "}
    read = s3_of(s3a=given)
    assert read.session_token is None
    assert read.endpoint is None
    assert read.access_key == "name"


def test_old_names_are_taken_where_the_new_ones_say_nothing() -> None:
    given = {OLD_NAMES.get(key, key): value for key, value in ALL_OF_S3A.items()}
    assert s3_of(s3a=given) == ALL_READ


def test_names_are_looked_for_in_the_order_of_hadoop() -> None:
    order = [
        f"{prefix}{name}"
        for prefix in (OF_THE_BUCKET, "")
        for name in ("encryption.key", OLD_NAMES["encryption.key"])
    ]
    for first in range(len(order)):
        given = {name: f"from {name}" for name in order[first:]}
        read = s3_of(s3a=given | {"encryption.algorithm": "SSE-KMS"})
        assert read.kms_key == f"from {order[first]}"


@pytest.mark.parametrize(
    ("secure", "expected"), [({}, "https"), ({"": "false"}, "http"), ({"": "true"}, "https")]
)
@pytest.mark.parametrize("prefix", ["", OF_THE_BUCKET], ids=["general", "of the bucket"])
def test_an_endpoint_without_a_scheme_gets_one(secure: Given, expected: str, prefix: str) -> None:
    given = {f"{prefix}connection.ssl.enabled{key}": value for key, value in secure.items()}
    assert s3_of(s3a={"endpoint": "host:1", **given}).endpoint == f"{expected}://host:1"


def test_whoever_names_an_endpoint_takes_nothing_of_hadoop() -> None:
    read = s3_of(own={"endpoint": "http://own"}, s3a=ALL_OF_S3A)
    assert read == S3Settings(endpoint="http://own")


def test_credentials_and_encryption_are_not_mixed() -> None:
    credentials = {"access-key": "own", "secret-key": "own"}
    read = s3_of(own=credentials, s3a=ALL_OF_S3A)
    assert (read.session_token, read.assumed_role) == (None, None)
    assert (read.region, read.kms_key) == ("eu-central-1", "key")
    read = s3_of(own={"kms-key": "own"}, s3a=ALL_OF_S3A | {"encryption.algorithm": "AES256"})
    assert (read.server_side_encryption, read.kms_key) == ("aws:kms", "own")
    read = s3_of(own={"server-side-encryption": "aws:kms"}, s3a=ALL_OF_S3A)
    assert (read.server_side_encryption, read.kms_key) == ("aws:kms", None)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("encryption.algorithm", "SSE-C"),
        ("server-side-encryption-algorithm", "CSE-KMS"),
        (f"{OF_THE_BUCKET}encryption.algorithm", "DSSE-KMS"),
        (f"{OF_THE_BUCKET}server-side-encryption-algorithm", "x"),
        ("path.style.access", "perhaps"),
        (f"{OF_THE_BUCKET}requester.pays.enabled", "perhaps"),
        ("endpoint", "gopher://host"),
    ],
)
def test_what_is_wrong_is_refused_by_the_key_that_said_it(key: str, value: str) -> None:
    message = refusal(s3a={key: value, "encryption.key": SECRET})
    assert f"setting 'spark.hadoop.fs.s3a.{key}' must be " in message
    assert f"got {value!r}" in message
    assert "spark.holdfast" not in message
    assert SECRET not in message


@pytest.mark.parametrize(
    ("given", "keys"),
    [
        ({"s3a": {"access.key": "name"}}, ["spark.hadoop.fs.s3a.access.key"]),
        (
            {"s3a": {f"{OF_THE_BUCKET}secret.key": SECRET}},
            ["spark.hadoop.fs.s3a.bucket.data.one.secret.key"],
        ),
        ({"own": {"secret-key": SECRET}}, ["spark.holdfast.s3.secret-key"]),
        ({"own": {"session-token": SECRET}}, ["spark.holdfast.s3.session-token"]),
        ({"s3a": {"endpoint": f"user:{SECRET}@host"}}, ["spark.hadoop.fs.s3a.endpoint"]),
        ({"own": {"endpoint": f"http://user:{SECRET}@host"}}, ["spark.holdfast.s3.endpoint"]),
        ({"own": {"endpoint": f"user:{SECRET}@host"}}, ["spark.holdfast.s3.endpoint"]),
    ],
)
def test_what_does_not_go_together_is_refused_by_its_keys_and_shows_no_secret(
    given: dict[str, Given], keys: list[str]
) -> None:
    message = refusal(**given)
    for key in keys:
        assert key in message
    assert "'data.one'" in message
    assert SECRET not in message


def test_no_secret_is_in_what_is_printed() -> None:
    given = {
        "spark.holdfast.checkpoint.dir": "s3://bucket/x",
        "spark.hadoop.fs.s3a.access.key": "name",
        "spark.hadoop.fs.s3a.secret.key": SECRET,
        "spark.hadoop.fs.s3a.session.token": SECRET,
    }
    settings = Settings.parse(given)
    assert settings.stores.s3["bucket"].secret_key == SECRET
    assert SECRET not in f"{settings} {settings!r}"


@pytest.mark.parametrize("scheme", ["s3", "S3A", "fsspec+s3"])
@pytest.mark.parametrize("end", ["", "/x"])
@pytest.mark.parametrize("wrong", [{}, {"access-key": "name"}, {"checksum": "bananas"}])
def test_a_password_in_the_uri_is_refused_and_not_shown(
    scheme: str, end: str, wrong: Given
) -> None:
    given = {
        "spark.holdfast.checkpoint.dir": f"{scheme}://name:{SECRET}@bucket{end}",
        **{f"spark.holdfast.s3.{key}": value for key, value in wrong.items()},
    }
    with pytest.raises(InvalidRequestError) as caught:
        Settings.parse(given).open_storage()
    assert SECRET not in f"{caught.value} {caught.value.args}"


# On executors


@pytest.fixture
def _as_it_was() -> Iterator[None]:
    yield
    for scheme in ("s3", "s3a"):
        unregister_file_system(scheme)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("_as_it_was")
def test_two_queries_at_the_same_time_keep_their_checkpoints_on_two_servers(
    spark: SparkSession, tmp_path: Path, moto_bucket: S3Bucket, ministack_bucket: S3Bucket
) -> None:
    buckets = (moto_bucket, ministack_bucket)
    together = threading.Barrier(2)  # batch by batch: neither runs ahead

    def job_on(bucket: S3Bucket, said: Callable[[S3Bucket], Given]) -> Job:
        job = Job(spark.newSession(), tmp_path / bucket.server.name)
        job.settings = {
            "spark.holdfast.checkpoint.dir": f"s3://{bucket.name}/checkpoints",
            "spark.holdfast.checkpoint.num-retained": "2",
            "spark.holdfast.state.inline-threshold": "0",  # tasks write it themselves
            "spark.holdfast.job.id": "job",
            **said(bucket),
        }
        return job

    def run(job: Job) -> None:
        def write(rows: DataFrame, batch_id: int) -> None:
            together.wait(HANGS_S)
            job.write(rows, batch_id)

        job.run(job.operator(Groups(70), sink=write))

    jobs = [job_on(moto_bucket, of_holdfast), job_on(ministack_bucket, of_hadoop)]
    for files in (2, 1):  # the second time they restore
        for job in jobs:
            job.feed(files)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(run, jobs))
    for job, bucket in zip(jobs, buckets, strict=True):
        assert job.ids_written() == list(range(300 // 70 * 70))
        keys = bucket.keys("checkpoints/job/chk-")
        completed = [key.split("/")[2] for key in keys if key.endswith("/_metadata")]
        assert completed == ["chk-2", "chk-3"]
        assert len(keys) > len(completed)  # and their state


def of_holdfast(bucket: S3Bucket) -> Given:
    return {
        "spark.holdfast.s3.endpoint": bucket.server.endpoint,
        "spark.holdfast.s3.region": bucket.server.region,
        "spark.holdfast.s3.path-style-access": "true",
        "spark.holdfast.s3.access-key": bucket.server.access_key,
        "spark.holdfast.s3.secret-key": bucket.server.secret_key,
    }


def of_hadoop(bucket: S3Bucket) -> Given:
    return {
        "spark.hadoop.fs.s3a.endpoint": "nowhere.invalid",
        f"spark.hadoop.fs.s3a.bucket.{bucket.name}.endpoint": bucket.server.endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": bucket.server.region,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        f"spark.hadoop.fs.s3a.bucket.{bucket.name}.access.key": bucket.server.access_key,
        f"spark.hadoop.fs.s3a.bucket.{bucket.name}.secret.key": bucket.server.secret_key,
    }
