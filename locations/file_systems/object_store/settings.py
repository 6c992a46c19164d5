"""Settings that all object stores through obstore have."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

from holdfast.errors import InvalidRequestError

_NO_LIMIT = timedelta(days=1)
"""For a whole request, which may read a large object; obstore's default is 30 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStoreSettings:
    """Settings to reach a store; values only, so that they compare and pickle.

    Attributes:
        endpoint: URL of the store, with `http://` or `https://`; the cloud's if not set.
        part_size: Bytes of a part of a large file, at least 5 MiB. A file has at most 10,000 parts.
        concurrency: Number of parts of one file that are sent at the same time.
        connect_timeout: Seconds to wait for a connection.
        read_timeout: Seconds to send a request, and to wait for the next byte of its answer; less than the deadline
            of retries, so that a stalled request is retried.
        ca_bundle: File with the certificates to trust.
    """

    MIN_PART_BYTES: ClassVar[int] = 5 << 20

    endpoint: str | None = None
    part_size: int = 8 << 20
    concurrency: int = 4
    connect_timeout: float = 5.0
    read_timeout: float = 20.0
    ca_bundle: str | None = None

    def __post_init__(self) -> None:
        for name, lowest in (("part_size", self.MIN_PART_BYTES), ("concurrency", 1)):
            if (number := getattr(self, name)) < lowest:
                raise InvalidRequestError(f"{name} must be >= {lowest}, got {number}")
        if self.endpoint is not None and not {"@", "?"}.isdisjoint(self.endpoint):
            raise InvalidRequestError("endpoint must not contain credentials; set them separately")

    def open_store(self, authority: str, **options: Any) -> Any:
        """Return obstore's store of the bucket or container that a URI's authority names.

        Raises:
            InvalidRequestError: obstore is missing, or the settings are not valid.
        """
        raise NotImplementedError

    def make_store(self, kind: str, bucket: str, extra: str, options: Mapping[str, Any]) -> Any:
        """Make obstore's store.

        Args:
            kind: Name of its class.
            bucket: Name of the bucket or container.
            extra: Name of Holdfast's extra that installs obstore.
            options: Its options, without those of its HTTP client.

        Raises:
            InvalidRequestError: obstore is missing, or the settings are not valid.
        """
        try:
            store = importlib.import_module("obstore.store")
        except ImportError as error:
            message = f"this store needs obstore: pip install 'holdfast[{extra}]'"
            raise InvalidRequestError(message, kind="missing-package") from error
        client = self._client_options()
        try:
            return getattr(store, kind)(bucket, **options, client_options=client)
        except Exception as error:  # noqa: BLE001  # obstore has many classes
            # Its text may quote a secret.
            message = f"obstore can't open the store ({type(error).__name__}); check its settings and credentials"
            raise InvalidRequestError(message, bucket, kind="connection") from None

    def _client_options(self) -> dict[str, Any]:
        client: dict[str, Any] = {
            "allow_http": True,
            "connect_timeout": timedelta(seconds=self.connect_timeout),
            "read_timeout": timedelta(seconds=self.read_timeout),
            "timeout": _NO_LIMIT,
            "user_agent": "holdfast",
        }
        if self.ca_bundle is not None:
            try:
                client["root_certificate"] = Path(self.ca_bundle).read_bytes()
            except OSError as error:
                message = f"file of certificates can't be read ({error.strerror})"
                raise InvalidRequestError(message, self.ca_bundle, kind="connection") from None
        return client
