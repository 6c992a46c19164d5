"""Other clients, each used as its documentation recommends, where that is clean.

Clean means that a failing producer publishes nothing. Files that fit into one part are passed as
a whole, so that the peers may use their fastest path for them; Holdfast gets no such hint. Apart from
its default checksum a library signs no SHA-256 of the body, as over HTTPS; obstore
does, because it sends no other checksum.
"""

import io
from typing import Any
from urllib.parse import urlsplit

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

from benchmarks.s3.works import CHUNK_BYTES, CONCURRENCY, PART_BYTES, Bucket, chunks, zeros

_CONFIG: dict[str, Any] = {
    "max_pool_connections": 32,
    "s3": {"addressing_style": "path", "payload_signing_enabled": False},
}


class Boto3:
    """boto3's requests for files of one part, its transfers for larger ones."""

    def __init__(self, bucket: Bucket) -> None:
        self._client = client_of(bucket)
        self._bucket = bucket.name
        self._config = TransferConfig(
            multipart_threshold=PART_BYTES,
            multipart_chunksize=PART_BYTES,
            max_concurrency=CONCURRENCY,
            preferred_transfer_client="classic",  # the other one ignores the endpoint, boto3#4839
        )

    def begin(self, prefix: str) -> None:
        self._prefix = prefix

    def write(self, number: int, file_bytes: int) -> str:
        key = f"{self._prefix}/{number}"
        if file_bytes <= PART_BYTES:
            self._client.put_object(Bucket=self._bucket, Key=key, Body=zeros(file_bytes))
        else:
            self._client.upload_fileobj(
                _Producer(file_bytes), self._bucket, key, Config=self._config
            )
        return key

    def read(self, written: str, file_bytes: int) -> int:
        if file_bytes <= PART_BYTES:
            answer = self._client.get_object(Bucket=self._bucket, Key=written)
            return len(answer["Body"].read())
        target = _Counted()
        self._client.download_fileobj(self._bucket, written, target, Config=self._config)
        return target.count

    def delete(self) -> None:
        delete_below(self._client, self._bucket, f"{self._prefix}/")


class Fsspec:
    """A file system of fsspec without its cache of listings.

    It has no clean way to write: an error in the block of a stream publishes what was written.

    Args:
        file_system: The file system.
        bucket: The bucket.
        read_options: Options of reads of whole files.
    """

    def __init__(self, file_system: Any, bucket: Bucket, **read_options: Any) -> None:
        self._file_system = file_system
        self._bucket = bucket.name
        self._read_options = read_options

    def begin(self, prefix: str) -> None:
        self._directory = f"{self._bucket}/{prefix}"

    def write(self, number: int, file_bytes: int) -> str:
        path = f"{self._directory}/{number}"
        if file_bytes <= PART_BYTES:  # streams take more requests even then
            self._file_system.pipe_file(path, zeros(file_bytes))
        else:
            self._write_stream(path, file_bytes)
        return path

    def _write_stream(self, path: str, file_bytes: int) -> None:
        with self._file_system.open(path, "wb", block_size=PART_BYTES) as file:
            for chunk in chunks(file_bytes):
                file.write(chunk)

    def read(self, written: str, file_bytes: int) -> int:
        if file_bytes <= PART_BYTES:
            return len(self._file_system.cat_file(written, **self._read_options))
        total = 0
        with self._file_system.open(written, "rb", block_size=PART_BYTES) as file:
            while part := file.read(CHUNK_BYTES):
                total += len(part)
        return total

    def delete(self) -> None:
        self._file_system.rm(self._directory, recursive=True)


class S3fs(Fsspec):
    """s3fs through fsspec, which can write cleanly."""

    def __init__(self, bucket: Bucket) -> None:
        import fsspec  # noqa: PLC0415  # optional

        file_system = fsspec.filesystem(
            "s3",
            key=bucket.access_key,
            secret=bucket.secret_key,
            endpoint_url=bucket.endpoint,
            client_kwargs={"region_name": bucket.region},
            config_kwargs=_CONFIG,
            max_concurrency=CONCURRENCY,
            use_listings_cache=False,
            skip_instance_cache=True,
        )
        # By default it asks for the size of each file first, to see whether to split it.
        super().__init__(file_system, bucket, max_concurrency=1)

    def _write_stream(self, path: str, file_bytes: int) -> None:
        file = self._file_system.open(path, "wb", autocommit=False, block_size=PART_BYTES)
        try:
            for chunk in chunks(file_bytes):
                file.write(chunk)
            file.close()
        except BaseException:
            file.discard()
            raise
        file.commit()


class Obstore:
    """obstore's writer and reader.

    Args:
        store: obstore's store of a bucket.
    """

    def __init__(self, store: Any) -> None:
        self._store = store

    def begin(self, prefix: str) -> None:
        self._prefix = prefix

    def write(self, number: int, file_bytes: int) -> str:
        import obstore  # noqa: PLC0415  # optional

        key = f"{self._prefix}/{number}"
        with obstore.open_writer(
            self._store, key, buffer_size=PART_BYTES, max_concurrency=CONCURRENCY
        ) as writer:
            for chunk in chunks(file_bytes):
                writer.write(chunk)
        return key

    def read(self, written: str, file_bytes: int) -> int:
        import obstore  # noqa: PLC0415  # optional

        answer = obstore.get(self._store, written)
        if file_bytes <= PART_BYTES:
            return len(answer.bytes())
        return sum(len(part) for part in answer.stream(CHUNK_BYTES))

    def delete(self) -> None:
        import obstore  # noqa: PLC0415  # optional

        for page in obstore.list(self._store, self._prefix, chunk_size=1000):
            obstore.delete(self._store, [entry["path"] for entry in page])


def obstore_on_s3(bucket: Bucket) -> Obstore:
    """Return the engine for a bucket of S3."""
    from obstore.store import S3Store  # noqa: PLC0415  # optional

    store = S3Store(
        bucket.name,
        endpoint=bucket.endpoint,
        access_key_id=bucket.access_key,
        secret_access_key=bucket.secret_key,
        region=bucket.region,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    return Obstore(store)


class Pyarrow:
    """pyarrow's file system, with its own parts of 10 MiB, as many at a time as it likes.

    It has no clean way to write: whatever closes a stream publishes it.
    """

    def __init__(self, bucket: Bucket) -> None:
        from pyarrow.fs import S3FileSystem  # noqa: PLC0415  # optional

        self._file_system = S3FileSystem(
            access_key=bucket.access_key,
            secret_key=bucket.secret_key,
            region=bucket.region,
            scheme="http",
            endpoint_override=urlsplit(bucket.endpoint).netloc,
            allow_delayed_open=True,  # else even a small file takes three requests
        )
        self._bucket = bucket.name

    def begin(self, prefix: str) -> None:
        self._directory = f"{self._bucket}/{prefix}"

    def write(self, number: int, file_bytes: int) -> str:
        path = f"{self._directory}/{number}"
        with self._file_system.open_output_stream(path) as file:
            for chunk in chunks(file_bytes):
                file.write(chunk)
        return path

    def read(self, written: str, file_bytes: int) -> int:
        total = 0
        with self._file_system.open_input_stream(written) as file:
            while part := file.read(min(file_bytes, PART_BYTES)):  # a request each
                total += len(part)
                if total == file_bytes:
                    break
        return total

    def delete(self) -> None:
        self._file_system.delete_dir(self._directory)


def client_of(bucket: Bucket) -> Any:
    """boto3's client."""
    return boto3.client(
        "s3",
        endpoint_url=bucket.endpoint,
        region_name=bucket.region,
        aws_access_key_id=bucket.access_key,
        aws_secret_access_key=bucket.secret_key,
        config=Config(**_CONFIG),
    )


def delete_below(client: Any, bucket: str, prefix: str) -> None:
    """Delete all objects with a prefix, a thousand at a time."""
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        if entries := [{"Key": entry["Key"]} for entry in page.get("Contents", ())]:
            answer = client.delete_objects(
                Bucket=bucket, Delete={"Objects": entries, "Quiet": True}
            )
            if "Errors" in answer:
                raise OSError(answer["Errors"][0])


class _Producer(io.RawIOBase):
    """A file of zeros, made while it is read.

    A read is never short: s3transfer takes that for the end, and stores what it has.
    """

    def __init__(self, length: int) -> None:
        self._left = length

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        count = self._left if size < 0 else min(self._left, size)
        self._left -= count
        return zeros(count)


class _Counted(io.RawIOBase):
    """Counts what is written, and forgets it."""

    count = 0

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def write(self, data: Any, /) -> int:
        self.count += len(data)
        return len(data)
