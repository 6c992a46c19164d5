"""Settings of S3, those of Holdfast and of Hadoop, and of HDFS; two queries with different ones."""

import threading
from collections.abc import Callable
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
from holdfast.spark.settings import Settings, s3_settings_table

SECRET = "the-secret-of-a-test"

Given = dict[str, str]


def s3_of(*, own: Given | None = None, s3a: Given | None = None) -> S3Settings:
    """Parse settings for the bucket `data.one`.

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


def test_every_setting_of_s3_is_parsed() -> None:
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
def test_no_bucket_has_no_settings(directory: str) -> None:
    given = {
        "spark.holdfast.checkpoint.dir": directory,
        "spark.hadoop.fs.s3a.encryption.algorithm": "SSE-C",  # of another component
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
def test_wrong_setting_is_refused_without_s3(key: str, value: str) -> None:
    given = {"spark.holdfast.checkpoint.dir": "file:///x", f"spark.holdfast.s3.{key}": value}
    with pytest.raises(InvalidRequestError, match=rf"spark\.holdfast\.s3\.{key}"):
        Settings.parse(given)


def test_right_settings_are_accepted_without_s3() -> None:
    given = {
        "spark.holdfast.checkpoint.dir": "file:///x",
        "spark.holdfast.s3.kms-key": "key",
        "spark.holdfast.s3.checksum": "off",
        "spark.hadoop.fs.s3a.access.key": "name",  # of another component
    }
    assert Settings.parse(given).stores.s3 == {}


# Hadoop settings

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
def test_hadoop_settings_are_used_as_defaults(prefix: str) -> None:
    given = {f"{prefix}{key}": f" {value} " for key, value in ALL_OF_S3A.items()}
    assert s3_of(s3a=given) == ALL_READ
    assert s3_of(own={"region": "us"}, s3a=given).region == "us"


@pytest.mark.parametrize("key", ALL_OF_S3A)
def test_bucket_option_wins_over_the_general_one(key: str) -> None:
    general = {**ALL_OF_S3A, key: "false" if ALL_OF_S3A[key] == "true" else "http://another"}
    given = general | {OF_THE_BUCKET + key: ALL_OF_S3A[key]}
    assert s3_of(s3a=given) == ALL_READ


def test_options_of_other_buckets_are_ignored() -> None:
    given = {
        f"bucket.{bucket}.{key}": value
        for bucket in ("data", "data.one.two", "one", "data-one", "*")
        for key, value in ALL_OF_S3A.items()
    }
    assert s3_of(s3a=given) == S3Settings()


def test_empty_bucket_option_removes_the_general_one() -> None:
    given = ALL_OF_S3A | {f"{OF_THE_BUCKET}session.token": "", f"{OF_THE_BUCKET}endpoint": " "}
    read = s3_of(s3a=given)
    assert read.session_token is None
    assert read.endpoint is None
    assert read.access_key == "name"


def test_old_names_fill_in_for_new_ones() -> None:
    given = {OLD_NAMES.get(key, key): value for key, value in ALL_OF_S3A.items()}
    assert s3_of(s3a=given) == ALL_READ


def test_names_have_the_precedence_of_hadoop() -> None:
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
def test_endpoint_without_a_scheme_gets_one(secure: Given, expected: str, prefix: str) -> None:
    given = {f"{prefix}connection.ssl.enabled{key}": value for key, value in secure.items()}
    assert s3_of(s3a={"endpoint": "host:1", **given}).endpoint == f"{expected}://host:1"


def test_own_endpoint_ignores_hadoop_settings() -> None:
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
def test_wrong_value_is_refused_with_its_key(key: str, value: str) -> None:
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
def test_contradictory_settings_are_refused_without_secrets(
    given: dict[str, Given], keys: list[str]
) -> None:
    message = refusal(**given)
    for key in keys:
        assert key in message
    assert "'data.one'" in message
    assert SECRET not in message


def test_secrets_are_not_printed() -> None:
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
def test_password_in_the_uri_is_refused_and_not_shown(scheme: str, end: str, wrong: Given) -> None:
    given = {
        "spark.holdfast.checkpoint.dir": f"{scheme}://name:{SECRET}@bucket{end}",
        **{f"spark.holdfast.s3.{key}": value for key, value in wrong.items()},
    }
    with pytest.raises(InvalidRequestError) as caught:
        Settings.parse(given).open_storage()
    assert SECRET not in f"{caught.value} {caught.value.args}"


# On executors


@pytest.mark.exhaustive
@pytest.mark.usefixtures("_unregister_s3")
def test_two_concurrent_queries_use_two_servers(
    spark: SparkSession, tmp_path: Path, moto_bucket: S3Bucket, ministack_bucket: S3Bucket
) -> None:
    buckets = (moto_bucket, ministack_bucket)
    together = threading.Barrier(2)  # batch by batch: neither runs ahead

    def job_on(bucket: S3Bucket, settings_of: Callable[[S3Bucket], Given]) -> Job:
        job = Job(spark.newSession(), tmp_path / bucket.server.name)
        job.settings = {
            "spark.holdfast.checkpoint.dir": f"s3://{bucket.name}/checkpoints",
            "spark.holdfast.checkpoint.num-retained": "2",
            "spark.holdfast.state.inline-threshold": "0",  # tasks write it themselves
            "spark.holdfast.job.id": "job",
            **settings_of(bucket),
        }
        return job

    def run(job: Job) -> None:
        def write(rows: DataFrame, batch_id: int) -> None:
            together.wait(HANGS_S)
            job.write(rows, batch_id)

        job.run(job.operator(Groups(70), sink=write))

    jobs = [job_on(moto_bucket, holdfast_settings), job_on(ministack_bucket, hadoop_settings)]
    for files in (2, 1):  # the second run restores
        for job in jobs:
            job.feed(files)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(run, jobs))
    for job, bucket in zip(jobs, buckets, strict=True):
        assert job.ids_written() == list(range(300 // 70 * 70))
        keys = bucket.keys("checkpoints/job/chk-")
        completed = [key.split("/")[2] for key in keys if key.endswith("/_metadata")]
        assert completed == ["chk-2", "chk-3"]
        assert len(keys) > len(completed)  # with their state


def holdfast_settings(bucket: S3Bucket) -> Given:
    return {
        "spark.holdfast.s3.endpoint": bucket.server.endpoint,
        "spark.holdfast.s3.region": bucket.server.region,
        "spark.holdfast.s3.path-style-access": "true",
        "spark.holdfast.s3.access-key": bucket.server.access_key,
        "spark.holdfast.s3.secret-key": bucket.server.secret_key,
    }


def hadoop_settings(bucket: S3Bucket) -> Given:
    return {
        "spark.hadoop.fs.s3a.endpoint": "nowhere.invalid",
        f"spark.hadoop.fs.s3a.bucket.{bucket.name}.endpoint": bucket.server.endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": bucket.server.region,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        f"spark.hadoop.fs.s3a.bucket.{bucket.name}.access.key": bucket.server.access_key,
        f"spark.hadoop.fs.s3a.bucket.{bucket.name}.secret.key": bucket.server.secret_key,
    }


HADOOP = {
    "spark.hadoop.dfs.nameservices": "cluster",
    "spark.hadoop.fs.defaultFS": "hdfs://cluster",
    "spark.hadoop.fs.viewfs.mounttable.all.link./a": "hdfs://cluster/a",
    "spark.hadoop.fs.s3a.path.style.access": "true",
    "dfs.replication": "1",
}


def hdfs(directory: str) -> dict[str, str]:
    settings = Settings.parse(HADOOP | {"spark.holdfast.checkpoint.dir": directory})
    return dict(settings.stores.hdfs)


def test_hdfs_gets_its_hadoop_options() -> None:
    expected = {
        "dfs.nameservices": "cluster",
        "fs.defaultFS": "hdfs://cluster",
        "fs.viewfs.mounttable.all.link./a": "hdfs://cluster/a",
    }
    for directory in ("hdfs://cluster/a", "HDFS:///a", "viewfs://all/a"):
        assert hdfs(directory) == expected


def test_other_stores_get_no_options_of_hdfs() -> None:
    for directory in ("file:///a", "s3://bucket/a", "hdfsx://cluster/a"):
        assert hdfs(directory) == {}
