"""The server to measure on, and its buckets."""

import http.client
import json
import multiprocessing
import os
import shlex
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.s3.peers import client_of, delete_below
from benchmarks.s3.works import Bucket
from holdfast.locations import S3Settings, use_s3
from holdfast.testing import http_faults

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


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes and requests through a link."""

    down_bytes: int
    up_bytes: int
    requests: int


@dataclass(frozen=True, slots=True)
class Link:
    """A bucket through a proxy that makes its server distant."""

    bucket: Bucket
    counts: str

    def reset(self) -> None:
        self._get("/reset")

    def traffic(self) -> Traffic:
        """Return the traffic since `reset`."""
        counts = json.loads(self._get("/"))
        return Traffic(counts["down"], counts["up"], sum(self.requests().values()))

    def requests(self) -> dict[str, int]:
        """Return the number of requests since `reset` by their methods."""
        counts = json.loads(self._get("/"))
        return {name: count for name, count in counts.items() if name.isupper()}

    def _get(self, path: str) -> bytes:
        connection = http.client.HTTPConnection(urlsplit(self.counts).netloc, timeout=10)
        with closing(connection):
            connection.request("GET", path)
            return connection.getresponse().read()


@contextmanager
def run_link(bucket: Bucket, delay_ms: float, megabytes_a_second: float) -> Iterator[Link]:
    """Run a proxy to the bucket's server: a delay each way, and a bandwidth that all connections share."""
    target = urlsplit(bucket.endpoint).netloc
    server = os.fspath(_INFRA / "server.py")
    command = [sys.executable, server, "link", target, str(delay_ms), str(megabytes_a_second)]
    start = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    known = dict(word.split("=", 1) for word in shlex.split(start.stdout))
    try:
        yield Link(replace(bucket, endpoint=known["endpoint"]), known["counts"])
    finally:
        subprocess.run([_INFRA / "stop", known["directory"]], check=True)


@contextmanager
def delay_requests(bucket: Bucket | None, delay_ms: float) -> Iterator[Bucket | None]:
    """Yield the bucket through a proxy that delays each request."""
    if bucket is None or not delay_ms:
        yield bucket
        return
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(
        target=_serve_delayed, args=(bucket.endpoint, delay_ms, sender), daemon=True
    )
    process.start()
    try:
        yield replace(bucket, endpoint=receiver.recv())
    finally:
        process.kill()
        process.join()


def _serve_delayed(endpoint: str, delay_ms: float, sender: Any) -> None:
    with http_faults(endpoint) as proxy:
        proxy.delay(lambda: time.sleep(delay_ms / 1e3), nth="every")
        sender.send(proxy.url)
        threading.Event().wait()  # until the process is killed


def use_bucket(bucket: Bucket | None) -> None:
    """Use the endpoint and keys of a bucket in this process, if there is one."""
    if bucket is not None:
        settings = S3Settings(
            endpoint=bucket.endpoint,
            region=bucket.region,
            path_style_access=True,
            access_key=bucket.access_key,
            secret_key=bucket.secret_key,
        )
        use_s3(settings, bucket=bucket.name)
