"""S3 servers on loopback: moto in this process, ministack in a separate one, and two real ones.

Each test gets a new, empty bucket from the fixtures below; servers start when the first test requests them
and stop with the session. If a server is not available, its tests are skipped with the reason.
"""

import http.client
import importlib.util
import logging
import os
import socket
import ssl
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from contracts.patience import HANGS_S, wait_until
from servers import infra
from servers.leash import leash

from holdfast.locations import S3Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Server:
    """A server, with the values that clients need.

    Attributes:
        name: `moto`, `ministack`, `minio` or `versitygw`; tests skip servers without a feature by it.
        endpoint: `http://127.0.0.1:port`.
        region: Region of signatures.
        access_key: Public half of the credentials.
        secret_key: The other half.
    """

    name: str
    endpoint: str
    region: str = "us-east-1"
    access_key: str = "holdfast"
    secret_key: str = field(default="holdfast-secret", repr=False)

    def client(
        self, endpoint: str | None = None, user: S3Settings | None = None, **settings: Any
    ) -> Any:
        """Return a client of boto3 without retries.

        Args:
            endpoint: Another URL of the server, such as `HttpFaults.url`.
            user: Settings with the credentials of another user.
            settings: Options of botocore's `Config`.
        """
        from botocore.config import Config

        retries = {"mode": "standard", "total_max_attempts": 1}
        # Proxies of the environment are not used.
        config = Config(s3={"addressing_style": "path"}, retries=retries, proxies={})
        return _session().client(
            "s3",
            endpoint_url=endpoint or self.endpoint,
            region_name=self.region,
            aws_access_key_id=user.access_key if user else self.access_key,
            aws_secret_access_key=user.secret_key if user else self.secret_key,
            aws_session_token=user.session_token if user else None,
            config=config.merge(Config(**settings)),
        )

    @contextmanager
    def new_bucket(self) -> "Iterator[S3Bucket]":
        """Create an empty bucket, which is deleted after the block with its content."""
        bucket = S3Bucket(self, f"test-{uuid.uuid4().hex}", self.client())
        bucket.client.create_bucket(Bucket=bucket.name)
        try:
            yield bucket
        finally:
            bucket.delete()
            bucket.client.close()


@dataclass(frozen=True, slots=True)
class S3Bucket:
    """A bucket, accessed without the code under test.

    Attributes:
        server: Its server.
        name: The bucket's name.
        client: A client of boto3 without faults.
    """

    server: S3Server
    name: str
    client: Any = field(repr=False)

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys of its objects, sorted."""
        pages = self._pages("list_objects_v2", prefix)
        return sorted(entry["Key"] for page in pages for entry in page.get("Contents", ()))

    def versions(self, prefix: str = "") -> list[tuple[str, str]]:
        """Return key and version id of all versions and delete markers of a versioned bucket."""
        return [
            (entry["Key"], entry["VersionId"])
            for page in self._pages("list_object_versions", prefix)
            for entry in (*page.get("Versions", ()), *page.get("DeleteMarkers", ()))
        ]

    def uploads(self, prefix: str = "") -> list[tuple[str, str]]:
        """Return key and id of the multipart uploads that are neither completed nor aborted."""
        return [
            (upload["Key"], upload["UploadId"])
            for page in self._pages("list_multipart_uploads", prefix)
            for upload in page.get("Uploads", ())
        ]

    def read(self, key: str) -> bytes:
        """Return the content of an object."""
        with self.client.get_object(Bucket=self.name, Key=key)["Body"] as body:
            content: bytes = body.read()
        return content

    def put(self, key: str, data: bytes) -> None:
        """Store an object."""
        self.client.put_object(Bucket=self.name, Key=key, Body=data)

    def delete(self) -> None:
        """Delete the bucket with its content."""
        for key, upload_id in self.uploads():
            self.client.abort_multipart_upload(Bucket=self.name, Key=key, UploadId=upload_id)
        for key, version_id in self.versions():
            self.client.delete_object(Bucket=self.name, Key=key, VersionId=version_id)
        self.client.delete_bucket(Bucket=self.name)

    def _pages(self, call: str, prefix: str) -> Iterator[dict[str, Any]]:
        yield from self.client.get_paginator(call).paginate(Bucket=self.name, Prefix=prefix)


@cache
def _session() -> Any:
    """Return the session in which boto3 caches its data files; imported on demand, because boto3 is large."""
    import boto3

    return boto3.Session()


@contextmanager
def moto_server() -> Iterator[S3Server]:
    """Run moto in a thread, which is fast and implements conditions, but ignores checksums.

    Moto reads and writes in two steps, so its conditions are atomic only if requests run one at a time.
    """
    if importlib.util.find_spec("moto") is None:
        pytest.skip("moto[server] is not installed")
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    moto = DomainDispatcherApplication(create_backend_app)
    lock = threading.Lock()

    def handle_one_at_a_time(environ: Any, start_response: Any) -> Any:
        with lock:
            return moto(environ, start_response)

    # It logs each request, and pytest would keep the lines of every test until the end.
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = make_server(
        "127.0.0.1", 0, handle_one_at_a_time, threaded=True, request_handler=MotoRequestHandler
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield S3Server(name="moto", endpoint=f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def ministack_server(directory: Path, **settings: str) -> Iterator[S3Server]:
    """Run ministack, which implements checksums, conditional completion and conditional deletion.

    Args:
        directory: Directory for its files.
        settings: Variables for its environment.
    """
    if importlib.util.find_spec("ministack") is None:
        pytest.skip("ministack is not installed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
        "BIND_HOST": "127.0.0.1",  # otherwise it would be open to the network
        "GATEWAY_PORT": str(port),
        "HOME": str(directory),
        "TMPDIR": str(directory),
        **settings,
    }
    scheme = "https" if "USE_SSL" in settings else "http"
    command = [Path(sys.executable).with_name("ministack")]
    log = directory / "log"
    with leash(command, directory=directory, log=log, environment=environment) as server:
        wait_until(
            lambda: _is_healthy(scheme, port) or not server.is_running(),
            "ministack does not answer",
        )
        assert server.is_running(), log.read_text()
        yield S3Server(name="ministack", endpoint=f"{scheme}://127.0.0.1:{port}")


@contextmanager
def real_server(name: str) -> Iterator[S3Server]:
    """Run one of the servers of `infra/s3`: `minio` or `versitygw`."""
    with infra.running("s3", name) as known:
        del known["directory"]
        yield S3Server(name=name, **known)


def _is_healthy(scheme: str, port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    if scheme == "https":  # with a new, unknown certificate
        unverified = ssl.create_default_context()
        unverified.check_hostname = False
        unverified.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=unverified)
    try:
        connection.request("GET", "/_ministack/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class SmallPartsSettings(S3Settings):
    """Settings with parts of any size, which all servers here except moto accept."""

    MIN_PART_BYTES = 1


def settings_of(
    server: S3Server, kind: type[S3Settings] | None = None, **changes: Any
) -> S3Settings:
    """Return settings for a server, with changes; its timeouts suit a busy machine."""
    if kind is None:
        kind = SmallPartsSettings if "part_size" in changes else S3Settings
    values = {
        "endpoint": server.endpoint,
        "region": server.region,
        "path_style_access": True,
        "access_key": server.access_key,
        "secret_key": server.secret_key,
        "connect_timeout": HANGS_S,
        "read_timeout": HANGS_S,
    }
    return kind(**{**values, **changes})


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    with moto_server() as server:
        yield server


@pytest.fixture(scope="session")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with ministack_server(tmp_path_factory.mktemp("ministack")) as server:
        yield server


@pytest.fixture(scope="session")
def minio() -> Iterator[S3Server]:
    with real_server("minio") as server:
        yield server


@pytest.fixture(scope="session")
def versitygw() -> Iterator[S3Server]:
    with real_server("versitygw") as server:
        yield server


@pytest.fixture
def moto_bucket(moto: S3Server) -> Iterator[S3Bucket]:
    with moto.new_bucket() as bucket:
        yield bucket


@pytest.fixture
def ministack_bucket(ministack: S3Server) -> Iterator[S3Bucket]:
    with ministack.new_bucket() as bucket:
        yield bucket


@pytest.fixture
def minio_bucket(minio: S3Server) -> Iterator[S3Bucket]:
    with minio.new_bucket() as bucket:
        yield bucket


@pytest.fixture
def versitygw_bucket(versitygw: S3Server) -> Iterator[S3Bucket]:
    with versitygw.new_bucket() as bucket:
        yield bucket


@pytest.fixture(params=["minio", "versitygw"])
def real_s3_bucket(request: pytest.FixtureRequest) -> S3Bucket:
    """A bucket on each of the real servers."""
    bucket: S3Bucket = request.getfixturevalue(f"{request.param}_bucket")
    return bucket
