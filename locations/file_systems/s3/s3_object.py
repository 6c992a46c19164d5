"""An object in S3, and requests to it."""

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
from holdfast.locations.file_systems.retrying import Retrier
from holdfast.locations.file_systems.s3.obstore_bucket import ObstoreBucket, obstore_for
from holdfast.locations.file_systems.s3.s3_errors import map_errors, was_not_performed
from holdfast.locations.file_systems.s3.s3_settings import S3Settings

OWNER_METADATA = "holdfast-owner"
"""Name of the metadata that identifies the writer of an object."""

ALGORITHMS = {"crc32c": "CRC32C", "crc32": "CRC32"}
_SUMS: dict[str, Callable[[Any], int]] = {"crc32c": crc32c, "crc32": crc32}


@dataclass(frozen=True, slots=True)
class S3Object:
    """The address of an object, with the client and settings for requests to it."""

    client: Any
    settings: S3Settings
    retrier: Retrier
    uri: str
    bucket: str
    key: str

    def request(self, name: str, **parameters: Any) -> Any:
        """Send one request for the object. Raises Holdfast errors."""
        with map_errors(self.uri):
            return getattr(self.client, name)(
                Bucket=self.bucket, Key=self.key, **parameters, **self.settings.request_parameters()
            )

    def request_with_retries(self, name: str, **parameters: Any) -> Any:
        """Send a request, and retry it while it fails without a change or is repeatable."""
        return self.retrier.call(name, lambda: self.request(name, **parameters))

    @property
    def obstore(self) -> ObstoreBucket | None:
        """The bucket through obstore, if it is usable."""
        return obstore_for(self.settings, self.bucket)

    def create(
        self, name: str, token: str, *, may_be_there: bool = False, **parameters: Any
    ) -> None:
        """Send a request that creates the object if its name is free.

        Args:
            name: The request.
            token: A token for the object's metadata, which later identifies the object as ours.
            may_be_there: Whether the request was sent before with an unknown outcome.
            parameters: The parameters of the request.

        Raises:
            CheckpointConflictError: The name is taken.
            OutcomeUnknownError: S3 did not confirm whether it was created.
        """

        def attempt() -> None:
            nonlocal may_be_there
            try:
                self.request(name, IfNoneMatch="*", **parameters)
            except StorageFullError:
                raise
            except StorageUnavailableError as error:
                may_be_there = may_be_there or not was_not_performed(error)
                raise
            except (CheckpointConflictError, CheckpointNotFoundError):
                # An attempt whose answer was lost has created it: it has taken the name, or has
                # completed the upload, which no longer exists.
                if not may_be_there or self.version_of(token) is None:
                    raise

        try:
            self.retrier.call(name, attempt)
        except CheckpointConflictError:
            raise  # another writer's object was there first
        except CheckpointError as error:
            if not may_be_there:
                raise
            message = "S3 did not confirm whether the file was written"
            raise OutcomeUnknownError(message, self.uri) from error

    def version_of(self, token: str) -> str | None:
        """Return the object's ETag if the stream with this token created it."""
        try:
            head = self.request("head_object")
        except CheckpointNotFoundError:
            return None
        is_ours = head.get("Metadata", {}).get(OWNER_METADATA) == token
        return str(head["ETag"]) if is_ours else None


def checksum_of(data: BytesLike, settings: S3Settings) -> dict[str, str]:
    """Return the parameter that the store verifies a body with."""
    if settings.checksum == "off":
        return {}
    total = _SUMS[settings.checksum](data)
    encoded = base64.b64encode(struct.pack(">I", total)).decode()
    return {f"Checksum{ALGORITHMS[settings.checksum]}": encoded}
