"""The tests' server of Google Cloud Storage in a separate process, with the JSON API that gcsfs uses.

    python -m benchmarks.clouds.server BUCKET...

It prints its endpoint, and ends with its standard input. `MemoryGcs` has the XML API, which obstore uses. Both
APIs store the same objects.
"""

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from servers.in_process import serve
from servers.memory_gcs import MemoryGcs
from servers.memory_s3 import Answer

from holdfast.testing import HttpRequest

_OBJECT = re.compile(r"(?:/(?:download|upload))?/storage/v1/b/([^/]+)/o(?:/(.+))?")
_DELETION = re.compile(r"DELETE (/storage/v1/b/\S+) HTTP")
_BOUNDARY = "deletions"


class JsonGcs(MemoryGcs):
    """Google's XML and JSON APIs in memory, as far as obstore and gcsfs use them here."""

    def __init__(self) -> None:
        super().__init__()
        self._uploads: dict[str, tuple[str, bytearray]] = {}

    def answer(self, request: HttpRequest, body: bytes) -> Answer:
        if request.path == "/batch/storage/v1":
            return self._delete_all(request, body)
        named = _OBJECT.fullmatch(request.path)
        if named is None:
            return super().answer(request, body)
        bucket, key = named[1], named[2]
        if request.path.startswith("/upload"):
            return self._receive(request, bucket, body)
        if key is None:
            prefix = request.query.get("prefix", "")
            items = [self._description(bucket, key) for key in self.keys(bucket, prefix)]
            return _json({"items": items})
        if request.method == "DELETE" or request.query.get("alt") == "media":
            return super().answer(replace(request, path=f"/{bucket}/{key}", query={}), b"")
        return _json(self._description(bucket, key))

    def _receive(self, request: HttpRequest, bucket: str, body: bytes) -> Answer:
        if request.query.get("uploadType") == "multipart":
            _, head, rest = body.split(b"\n\n", 2)
            key = json.loads(head.partition(b"\n")[0])["name"]
            self.put(bucket, key, rest.rpartition(b"\n--")[0])
            return _json(self._description(bucket, key))
        if request.query.get("uploadType") == "resumable":
            number = uuid.uuid4().hex
            self._uploads[number] = (request.query["name"], bytearray())
            location = f"http://{request.headers['host']}{request.path}?upload_id={number}"
            return Answer(headers={"Location": location})
        key, data = self._uploads[request.query["upload_id"]]
        data += body
        if request.headers["content-range"].endswith("/*"):
            return Answer(308, headers={"Range": f"bytes=0-{len(data) - 1}"})
        self.put(bucket, key, bytes(data))
        del self._uploads[request.query["upload_id"]]
        return _json(self._description(bucket, key))

    def _delete_all(self, request: HttpRequest, body: bytes) -> Answer:
        parts = []
        for path in _DELETION.findall(body.decode()):
            plain = replace(
                request, method="DELETE", path=unquote(path.partition("?")[0]), headers={}
            )
            parts.append(f"--{_BOUNDARY}\r\n\r\nHTTP/1.1 {self.answer(plain, b'').status}\r\n")
        content = "".join([*parts, f"--{_BOUNDARY}--"]).encode()
        return Answer(
            body=content, headers={"Content-Type": f"multipart/mixed; boundary={_BOUNDARY}"}
        )

    def _description(self, bucket: str, key: str) -> dict[str, Any]:
        size = str(len(self.read(bucket, key)))
        return {
            "kind": "storage#object",
            "name": key,
            "bucket": bucket,
            "size": size,
            "generation": "1",
        }


def _json(value: object) -> Answer:
    return Answer(body=json.dumps(value).encode(), headers={"Content-Type": "application/json"})


@contextmanager
def run_gcs(buckets: list[str]) -> Iterator[str]:
    """Run a server with empty buckets until the block ends; yields its endpoint."""
    command = [sys.executable, "-m", "benchmarks.clouds.server", *buckets]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin
        assert server.stdout
        yield server.stdout.readline().strip()
        server.stdin.close()


def main() -> None:
    """Serve until the standard input ends."""
    store = JsonGcs()
    for bucket in sys.argv[1:]:
        store.add_bucket(bucket)
    with serve(store.answer) as endpoint:
        print(endpoint, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
