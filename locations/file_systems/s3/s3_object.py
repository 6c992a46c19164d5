"""An object in S3, and the requests about it."""

import base64
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from holdfast.common import crc32c
from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointNotFoundError,
    OutcomeUnknownError,
    StorageFullError,
    StorageUnavailableError,
)
from holdfast.locations.file_systems.port import BytesLike
from holdfast.locations.file_systems.retries import Retrier
from holdfast.locations.file_systems.s3.s3_errors import changed_nothing, translated
from holdfast.locations.file_systems.s3.s3_settings import S3Settings
from holdfast.locations.file_systems.s3.through_obstore import ObstoreBucket, obstore_for

OWNER = "holdfast-owner"
"""Name of the metadata that tells whose an object is."""

ALGORITHMS = {"crc32c": "CRC32C", "crc32": "CRC32"}
_SUMS: dict[str, Callable[[Any], int]] = {"crc32c": crc32c, "crc32": crc32}


@dataclass(frozen=True, slots=True)
class S3Object:
    """An object by its place, with what is needed to reach it."""

    client: Any
    settings: S3Settings
    retrier: Retrier
    uri: str
    bucket: str
    key: str

    def request(self, name: str, **parameters: Any) -> Any:
        """Send one request about the object. Raises errors of ours."""
        with translated(self.uri):
            return getattr(self.client, name)(
                Bucket=self.bucket, Key=self.key, **parameters, **self.settings.for_all()
            )

    def repeated(self, name: str, **parameters: Any) -> Any:
        """Send a request, and repeat it while it fails in a way that changes nothing or may be repeated."""
        return self.retrier.call(name, lambda: self.request(name, **parameters))

    @property
    def obstore(self) -> ObstoreBucket | None:
        """The faster way to the bucket, where there is one."""
        return obstore_for(self.settings, self.bucket)

    def made(self, name: str, token: str, *, may_be_there: bool = False, **parameters: Any) -> None:
        """Send a request that makes the object, only if its name is free.

        Args:
            name: The request.
            token: A token for the object's metadata, by which the object is recognised as ours later.
            may_be_there: Whether the request was sent before, and nobody knows what came of it.
            parameters: The parameters of the request.

        Raises:
            CheckpointConflictError: The name is taken.
            OutcomeUnknownError: S3 did not say whether it was made.
        """

        def attempt() -> None:
            nonlocal may_be_there
            try:
                self.request(name, IfNoneMatch="*", **parameters)
            except StorageFullError:
                raise
            except StorageUnavailableError as error:
                may_be_there = may_be_there or not changed_nothing(error)
                raise
            except (CheckpointConflictError, CheckpointNotFoundError):
                # An attempt whose answer was lost has made it: the name is taken by it, or the
                # upload that it completed is gone.
                if not may_be_there or self.version_of(token) is None:
                    raise

        try:
            self.retrier.call(name, attempt)
        except CheckpointConflictError:
            raise  # somebody else's was there first
        except CheckpointError as error:
            if not may_be_there:
                raise
            message = "S3 did not say whether the file was written"
            raise OutcomeUnknownError(message, self.uri) from error

    def version_of(self, token: str) -> str | None:
        """The object's ETag if the stream with this token has made it."""
        try:
            head = self.request("head_object")
        except CheckpointNotFoundError:
            return None
        is_ours = head.get("Metadata", {}).get(OWNER) == token
        return str(head["ETag"]) if is_ours else None


def checksum_of(data: BytesLike, settings: S3Settings) -> dict[str, str]:
    """The parameter by which the store checks a body."""
    if settings.checksum == "off":
        return {}
    total = _SUMS[settings.checksum](data)
    encoded = base64.b64encode(struct.pack(">I", total)).decode()
    return {f"Checksum{ALGORITHMS[settings.checksum]}": encoded}
