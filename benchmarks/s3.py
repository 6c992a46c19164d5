"""How fast do state files get to an S3 store and back, next to boto3's own transfers and obstore?

    eval "$(infra/s3/start minio)"
    python -m benchmarks.s3 --endpoint $endpoint --access-key $access_key --secret-key $secret_key
    infra/s3/stop $directory

All engines work in one process and take turns, round by round, with the same number of threads on
the same server. Ours adds its checksum, and asks the store to check one. Figures are medians; a
ratio above 1 means that Holdfast is faster. An engine that is not installed is left out.
"""

import argparse
import importlib.util
import io
import statistics
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

from holdfast.locations import (
    CheckpointedStateScope,
    FileSystemCheckpointStorage,
    S3Settings,
    StreamStateHandle,
    use_s3,
)

CHUNK = bytes(1 << 20)


@dataclass(frozen=True, slots=True)
class Work:
    """So many files of so many bytes, by so many threads."""

    name: str
    files: int
    file_bytes: int
    threads: int


WORKS = [
    Work("2,000 x 4 KiB", 2000, 4 << 10, 16),
    Work("64 x 1 MiB", 64, 1 << 20, 8),
    Work("1 x 1 GiB", 1, 1 << 30, 1),
]


class Engine(Protocol):
    """One way to write and read objects."""

    name: str

    def write(self, prefix: str, number: int, file_bytes: int) -> Any:
        """Store a file of zeros; what is returned leads to it."""
        ...

    def read(self, written: Any) -> int:
        """Read all of it; the number of bytes."""
        ...


class Holdfast:
    """A state stream of a checkpoint storage, with checksums."""

    name = "Holdfast"

    def __init__(self, bucket: str) -> None:
        storage = FileSystemCheckpointStorage(f"s3://{bucket}/ours", inline_threshold=0)
        self._access = storage.create_checkpoint_storage("job")
        self._location = self._access.initialize_location_for_checkpoint(1)

    def write(self, prefix: str, number: int, file_bytes: int) -> StreamStateHandle:  # noqa: ARG002
        stream = self._location.create_checkpoint_state_output_stream(
            CheckpointedStateScope.EXCLUSIVE
        )
        with stream:
            for begin in range(0, file_bytes, len(CHUNK)):
                stream.write(memoryview(CHUNK)[: file_bytes - begin])
            handle = stream.close_and_get_handle()
        assert handle is not None
        return handle

    def read(self, written: StreamStateHandle) -> int:
        total = 0
        with written.open_input_stream() as stream:
            while part := stream.read(1 << 20):
                total += len(part)
        return total


class Zeros(io.RawIOBase):
    """A file of zeros, made while it is read."""

    def __init__(self, length: int) -> None:
        self._left = length

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        count = min(self._left, len(CHUNK) if size < 0 else size)
        self._left -= count
        return bytes(count)


class S3Transfer:
    """boto3's `upload_fileobj` and `download_fileobj`."""

    name = "boto3 + s3transfer"

    def __init__(self, client: Any, bucket: str) -> None:
        self._client = client
        self._bucket = bucket
        self._config = TransferConfig(
            multipart_threshold=8 << 20,
            multipart_chunksize=8 << 20,
            max_concurrency=4,
            preferred_transfer_client="classic",
        )

    def write(self, prefix: str, number: int, file_bytes: int) -> str:
        key = f"{prefix}/{number}"
        self._client.upload_fileobj(Zeros(file_bytes), self._bucket, key, Config=self._config)
        return key

    def read(self, written: str) -> int:
        target = Counted()
        self._client.download_fileobj(self._bucket, written, target, Config=self._config)
        return target.count


class Counted(io.RawIOBase):
    """Counts what is written, and forgets it."""

    count = 0

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def write(self, data: Any, /) -> int:
        self.count += len(data)
        return len(data)


class Obstore:
    """obstore's writer and reader."""

    name = "obstore"

    def __init__(self, options: argparse.Namespace, bucket: str) -> None:
        from obstore.store import S3Store  # noqa: PLC0415  # optional

        self._store = S3Store(
            bucket,
            endpoint=options.endpoint,
            access_key_id=options.access_key,
            secret_access_key=options.secret_key,
            region="us-east-1",
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )

    def write(self, prefix: str, number: int, file_bytes: int) -> str:
        import obstore  # noqa: PLC0415  # optional

        key = f"{prefix}/{number}"
        with obstore.open_writer(
            self._store, key, buffer_size=8 << 20, max_concurrency=4
        ) as writer:
            for begin in range(0, file_bytes, len(CHUNK)):
                writer.write(CHUNK[: file_bytes - begin])
        return key

    def read(self, written: str) -> int:
        import obstore  # noqa: PLC0415  # optional

        return sum(len(part) for part in obstore.get(self._store, written).stream(1 << 20))


def measured(work: Work, engine: Engine) -> tuple[float, float]:
    """Seconds to write and to read."""
    prefix = uuid.uuid4().hex

    def timed(action: Callable[[Any], Any], items: Any) -> tuple[float, list[Any]]:
        with ThreadPoolExecutor(work.threads) as pool:
            started = time.perf_counter()
            found = list(pool.map(action, items))
            return time.perf_counter() - started, found

    wrote, files = timed(
        lambda number: engine.write(prefix, number, work.file_bytes), range(work.files)
    )
    read, sizes = timed(engine.read, files)
    if sizes != [work.file_bytes] * work.files:
        raise SystemExit(f"{engine.name} read {sum(sizes)} bytes of {work.name}")
    return wrote, read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--access-key", required=True)
    parser.add_argument("--secret-key", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    client = boto3.client(
        "s3",
        endpoint_url=options.endpoint,
        region_name="us-east-1",
        aws_access_key_id=options.access_key,
        aws_secret_access_key=options.secret_key,
        config=Config(s3={"addressing_style": "path"}, max_pool_connections=32),
    )
    bucket = f"bench-{uuid.uuid4().hex[:12]}"
    client.create_bucket(Bucket=bucket)
    use_s3(
        S3Settings(
            endpoint_url=options.endpoint,
            region="us-east-1",
            path_style=True,
            access_key=options.access_key,
            secret_key=options.secret_key,
        )
    )
    engines: list[Engine] = [Holdfast(bucket), S3Transfer(client, bucket)]
    if importlib.util.find_spec("obstore") is not None:
        engines.append(Obstore(options, bucket))
    print(f"{'median of ' + str(options.rounds) + ' rounds, s':26}", end="")
    print("".join(f"{engine.name:>22}" for engine in engines), " ratios to Holdfast")
    for work in WORKS:
        rounds = [[measured(work, engine) for engine in engines] for _ in range(options.rounds)]
        for index, kind in enumerate(("write", "read")):
            medians = [
                statistics.median(one[number][index] for one in rounds)
                for number in range(len(engines))
            ]
            ratios = [
                statistics.median(one[number][index] / one[0][index] for one in rounds)
                for number in range(1, len(engines))
            ]
            print(f"{kind + ' ' + work.name:26}", end="")
            print("".join(f"{median:22.3f}" for median in medians), end="  ")
            print(", ".join(f"{ratio:.2f}" for ratio in ratios))


if __name__ == "__main__":
    main()
