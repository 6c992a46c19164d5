"""The server to measure on, and its buckets."""

import shlex
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.s3.peers import client_of, delete_below
from benchmarks.s3.works import Bucket

_INFRA = Path(__file__).parents[2] / "infra" / "s3"


@dataclass(frozen=True, slots=True)
class Server:
    """Endpoint and keys of a server."""

    endpoint: str
    access_key: str
    secret_key: str
    region: str = "us-east-1"

    @contextmanager
    def new_bucket(self, *, through: str | None = None) -> Iterator[Bucket]:
        """A bucket that is there until the block is left.

        Args:
            through: Another endpoint that leads to the server.
        """
        bucket = Bucket(
            f"bench-{uuid.uuid4().hex[:12]}",
            self.endpoint,
            self.region,
            self.access_key,
            self.secret_key,
        )
        client = client_of(bucket)
        client.create_bucket(Bucket=bucket.name)
        try:
            yield replace(bucket, endpoint=through or self.endpoint)
        finally:
            delete_below(client, bucket.name, "")
            for upload in client.list_multipart_uploads(Bucket=bucket.name).get("Uploads", ()):
                client.abort_multipart_upload(
                    Bucket=bucket.name, Key=upload["Key"], UploadId=upload["UploadId"]
                )
            client.delete_bucket(Bucket=bucket.name)


@contextmanager
def run_server(name: str) -> Iterator[Server]:
    """Run a server of `infra/s3` until the block is left."""
    start = subprocess.run([_INFRA / "start", name], check=False, stdout=subprocess.PIPE, text=True)
    if start.returncode:
        sys.exit(f"{name} did not start")
    known = dict(word.split("=", 1) for word in shlex.split(start.stdout))
    directory = known.pop("directory")
    try:
        yield Server(**known)
    finally:
        subprocess.run([_INFRA / "stop", directory], check=True)
