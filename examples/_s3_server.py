"""An S3 server of the demo's own, which is gone with it."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3

_INFRA = Path(__file__).parent.parent / "infra" / "s3"
_UNAVAILABLE = 3
_BUCKET = "holdfast-demo"


class NoServerError(Exception):
    """No S3 server can be had on this machine."""


@contextmanager
def s3_server() -> Iterator[str]:
    """Start a server with an empty bucket, and let this process and its children reach it.

    Yields:
        URI of a directory in the bucket.

    Raises:
        NoServerError: There can be none, or it does not start.
    """
    # What takes long is said on stderr, and so is why there can be none.
    started = subprocess.run(
        [_INFRA / "start", "minio"],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHON": sys.executable},
    )
    if started.returncode == _UNAVAILABLE:
        message = (
            "there can be no S3 server here, see above: it is built from source by Go, once. "
            "Install Go, or run the demo without STORAGE=s3"
        )
        raise NoServerError(message)
    if started.returncode != 0:
        raise NoServerError("the S3 server did not start, see above")
    known = dict(word.split("=", 1) for word in shlex.split(started.stdout))
    try:
        _let_boto3_find(known)
        client = boto3.client("s3")
        client.create_bucket(Bucket=_BUCKET)
        client.close()
        yield f"s3://{_BUCKET}/checkpoints"
    finally:
        subprocess.run([_INFRA / "stop", known["directory"]], check=True)


def _let_boto3_find(known: dict[str, str]) -> None:
    """Have boto3 reach that server here and in child processes, whatever the user has set."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ |= {
        "AWS_ENDPOINT_URL_S3": known["endpoint"],
        "AWS_DEFAULT_REGION": known["region"],
        "AWS_ACCESS_KEY_ID": known["access_key"],
        "AWS_SECRET_ACCESS_KEY": known["secret_key"],
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }
