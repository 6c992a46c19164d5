"""Servers of the demo's own for checkpoints, which are gone with it."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import boto3

_INFRA = Path(__file__).parents[2] / "infra"
_UNAVAILABLE = 3
_BUCKET = "holdfast-demo"
_PROXIES = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}


class NoServerError(Exception):
    """No such server can be had on this machine."""


@contextmanager
def s3_server() -> Iterator[str]:
    """Start a server with an empty bucket, and let this process and its children reach it.

    Yields:
        URI of a directory in the bucket.

    Raises:
        NoServerError: There can be none, or it does not start.
    """
    with _start_server("S3", "s3", "minio", needs="it is built from source by Go, once") as known:
        # The user's variables for boto3.
        _set_environment(
            "AWS_",
            {
                "AWS_ENDPOINT_URL_S3": known["endpoint"],
                "AWS_DEFAULT_REGION": known["region"],
                "AWS_ACCESS_KEY_ID": known["access_key"],
                "AWS_SECRET_ACCESS_KEY": known["secret_key"],
                "AWS_CONFIG_FILE": os.devnull,
                "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
                **_PROXIES,
            },
        )
        # The session that boto3 makes by itself would keep the keys of an earlier server.
        client = boto3.Session().client("s3")
        client.create_bucket(Bucket=_BUCKET)
        client.close()
        yield f"s3://{_BUCKET}/checkpoints"


@contextmanager
def gcs_server() -> Iterator[str]:
    """Start a server of Google's XML API with an empty bucket, and let this process and its children reach it.

    Yields:
        URI of a directory in the bucket.

    Raises:
        NoServerError: There can be none, or it does not start.
    """
    needs = "it is a part of the tests, which need holdfast[testing]"
    with _start_server("GCS", "gcs", needs=needs) as known:
        _run_infra("gcs", "bucket", known["directory"], _BUCKET)
        # The second variable hides the user's default credentials.
        variables = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_APPLICATION_CREDENTIALS")
        _set_environment("GOOGLE_", {**dict.fromkeys(variables, known["credentials"]), **_PROXIES})
        yield f"gs://{_BUCKET}/checkpoints"


@contextmanager
def azure_server() -> Iterator[str]:
    """Start Azurite with an empty container, and let this process and its children reach it.

    Yields:
        URI of a directory in the container.

    Raises:
        NoServerError: There can be none, or it does not start.
    """
    with _start_server("Azure", "azure", needs="npm fetches Azurite, once") as known:
        _run_infra("azure", "container", known["directory"], _BUCKET)
        _set_environment(
            "AZURE_",
            {
                "AZURE_STORAGE_ENDPOINT": known["endpoint"],
                "AZURE_STORAGE_ACCOUNT_NAME": known["account"],
                "AZURE_STORAGE_ACCOUNT_KEY": known["secret_key"],
                **_PROXIES,
            },
        )
        yield f"az://{_BUCKET}/checkpoints"


@contextmanager
def hdfs_server() -> Iterator[str]:
    """Start an empty file system, and let this process and its children reach it.

    Yields:
        URI of a directory in it, which is not there yet.

    Raises:
        NoServerError: There can be none, or it does not start.
    """
    with _start_server("HDFS", "hdfs", needs="Maven brings Hadoop's jars, once") as known:
        # Another user, proxy user, token file or directory of settings would lead elsewhere.
        _set_environment("HADOOP_", {"HADOOP_CONF_DIR": known["conf_dir"], **_PROXIES})
        yield f"{known['uri']}/checkpoints"


@dataclass(frozen=True, slots=True)
class KafkaServer:
    """A Kafka of one broker.

    Attributes:
        bootstrap: The value of `bootstrap.servers`.
        jars: Spark's connector.
    """

    bootstrap: str
    jars: tuple[Path, ...]


@contextmanager
def kafka_server() -> Iterator[KafkaServer]:
    """Start a Kafka without topics.

    Raises:
        NoServerError: There can be none, or it does not start.
    """
    needs = "Maven brings Kafka's jars, once"
    connector = _call("connector of Kafka", "kafka", "jars", needs=needs)
    with _start_server("Kafka", "kafka", needs=needs) as known:
        yield KafkaServer(known["bootstrap"], _jars_in(connector["jars"]))


def table_jars() -> tuple[Path, ...]:
    """Return the jars of Delta and Iceberg. Raises `NoServerError` if they can't be had."""
    needs = "Maven brings their jars, once"
    return _jars_in(_call("Delta and Iceberg", "tables", "build", needs=needs)["jars"])


def _jars_in(directory: str) -> tuple[Path, ...]:
    return tuple(sorted(Path(directory).iterdir()))


SERVERS: Mapping[str, Callable[[], AbstractContextManager[str]]] = {
    "s3": s3_server,
    "gcs": gcs_server,
    "azure": azure_server,
    "hdfs": hdfs_server,
}
"""Return the context manager that starts the servers of a storage."""


@contextmanager
def _start_server(
    name: str, directory: str, *arguments: str, needs: str
) -> Iterator[dict[str, str]]:
    """Start a server, yield its values, and stop it after the block."""
    known = _call(f"{name} server", directory, "start", *arguments, needs=needs)
    try:
        yield known
    finally:
        _run_infra(directory, "stop", known["directory"])


def _run_infra(directory: str, command: str, *arguments: str) -> None:
    subprocess.run(
        [_INFRA / directory / command, *arguments],
        check=True,
        env=os.environ | {"PYTHON": sys.executable},
    )


def _call(name: str, directory: str, command: str, *arguments: str, needs: str) -> dict[str, str]:
    """Run a command of a server, and return the values that it prints. Raises `NoServerError`."""
    # stderr has the progress of a long start, and the reason of a failure.
    done = subprocess.run(
        [_INFRA / directory / command, *arguments],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHON": sys.executable},
    )
    if done.returncode == _UNAVAILABLE:
        message = f"there can be no {name} here, see above: {needs}. Install what is missing"
        raise NoServerError(message)
    if done.returncode != 0:
        raise NoServerError(f"the {name} did not start, see above")
    return dict(word.split("=", 1) for word in shlex.split(done.stdout))


def _set_environment(prefix: str, variables: Mapping[str, str]) -> None:
    """Set variables for this process and its children, and no others of that prefix."""
    for name in [name for name in os.environ if name.startswith(prefix)]:
        del os.environ[name]
    os.environ |= variables
