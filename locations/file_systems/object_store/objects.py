"""A bucket through obstore, an object in it, and the translation of obstore's errors in one table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeVar

from holdfast.errors import (
    CheckpointConflictError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRequestError,
    OutcomeUnknownError,
    StorageFullError,
    StorageUnavailableError,
)
from holdfast.locations.file_systems.obstore_requests import (
    begin_use,
    code_of,
    is_about_token,
    status_of,
    was_not_performed,
)
from holdfast.locations.file_systems.port import BytesLike
from holdfast.locations.file_systems.retrying import RetryPolicy

OWNER_ATTRIBUTE = "holdfastowner"
"""Name of the metadata that identifies the writer of an object; Azure accepts only identifiers of C#."""

_Result = TypeVar("_Result")

_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound", "FilesystemNotFound"}

# Codes of a conflict about the name. Azure uses the status 409 for other conflicts too, and obstore one class for all.
_CONFLICTS = {"", "BlobAlreadyExists", "PathAlreadyExists", "PreconditionFailed", "ConditionNotMet"}

_REFUSED = {"PermissionDeniedError", "UnauthenticatedError"}

_MANY_RETRIES = 1_000_000
"""The deadline ends them."""


class Bucket:
    """A bucket or container.

    Args:
        make: Makes obstore's store with some options.
        retries: How long parts of uploads are retried; obstore sends them by itself.
    """

    def __init__(self, make: Callable[..., Any], retries: RetryPolicy) -> None:
        self._make = make
        self._retries = retries
        self.store = make(retry_config={"max_retries": 0, "retry_timeout": timedelta(0)})
        """obstore's store, with one attempt at each request."""

    @cached_property
    def store_for_parts(self) -> Any:
        """The same for uploads in parts."""
        policy = self._retries
        return self._make(
            retry_config={
                "max_retries": _MANY_RETRIES if policy.deadline_s else 0,
                "retry_timeout": timedelta(seconds=policy.deadline_s),
                "backoff": {
                    "init_backoff": timedelta(seconds=policy.first_wait_s),
                    "max_backoff": timedelta(seconds=policy.max_wait_s),
                },
            }
        )


@dataclass(frozen=True, slots=True)
class StoredObject:
    """The address of an object, which may not exist yet."""

    bucket: Bucket
    uri: str
    key: str

    def request(self, operation: str, action: Callable[[Any, str], _Result]) -> _Result:
        """Send one request for the object. Raises Holdfast errors."""
        return request(self.uri, operation, lambda: action(self.bucket.store, self.key))

    def put_if_free(self, data: BytesLike, attributes: Mapping[str, str] | None = None) -> None:
        """Create the object by one request if its name is free.

        Raises:
            CheckpointConflictError: The name is taken.
            OutcomeUnknownError: The store did not confirm whether it was created.
        """
        from obstore import put  # noqa: PLC0415  # optional

        try:
            put(
                self.bucket.store,
                self.key,
                data,
                attributes=dict(attributes) if attributes else None,
                mode="create",
                use_multipart=False,
            )
        except Exception as error:  # noqa: BLE001  # obstore has many classes
            failure = error_for(error, self.uri, "write")
            is_transient = isinstance(failure, StorageUnavailableError)
            if (
                not is_transient
                or isinstance(failure, StorageFullError)
                or was_not_performed(error)
            ):
                raise failure from None
            raise unknown_outcome(self.uri) from None

    def was_created_by(self, token: str) -> bool:
        """Return whether the stream with this token created the object."""
        from obstore import get  # noqa: PLC0415  # optional

        try:
            answer = self.request("read", lambda *at: get(*at, options={"head": True}))
        except CheckpointNotFoundError:
            return False
        return bool(answer.attributes.get(OWNER_ATTRIBUTE) == token)

    def delete(self) -> None:
        """Delete the object; a missing one counts as deleted."""
        from obstore import delete  # noqa: PLC0415  # optional

        try:
            self.request("delete", delete)
        except CheckpointNotFoundError:
            return


def request(uri: str, operation: str, action: Callable[[], _Result]) -> _Result:
    """Call obstore and translate its errors."""
    try:
        return action()
    except Exception as error:  # noqa: BLE001  # obstore has many classes
        # Not as the cause: its text is the store's answer.
        raise error_for(error, uri, operation) from None


def check_process(uri: str) -> None:
    """Raise `InvalidRequestError` in a process where requests would hang."""
    if not begin_use():
        message = (
            "this process was forked from one that has used obstore, whose requests would never end here; "
            "start it by 'spawn' or 'forkserver'"
        )
        raise InvalidRequestError(message, uri, kind="connection")


def unknown_outcome(uri: str) -> OutcomeUnknownError:
    return OutcomeUnknownError("the store did not confirm whether the file was written", uri)


def error_for(error: BaseException, uri: str, operation: str) -> CheckpointError:
    """Return the Holdfast error for an error of obstore; of the store's answer, its text contains only the code.

    Args:
        error: The error.
        uri: URI of the object, directory or bucket.
        operation: A verb, such as `write`.
    """
    name, status, code = type(error).__name__, status_of(error), code_of(error)
    answer = ", ".join(filter(None, (str(status or ""), code))) or name
    if code in _NO_BUCKET:
        message = "bucket or container does not exist; create it first"
        return InvalidRequestError(message, uri, kind="no-bucket")
    if isinstance(error, FileNotFoundError):
        return CheckpointNotFoundError("no such object", uri)
    if name == "PreconditionError" or (name == "AlreadyExistsError" and code in _CONFLICTS):
        return CheckpointConflictError.exists(uri)
    if name == "InvalidPathError":
        message = (
            "there is an object whose name has an empty or a dotted part, such as a//b or a/./b, which obstore "
            "can't list; delete or rename it"
        )
        return InvalidRequestError(message, uri, kind="location")
    message = f"store failed to {operation} ({answer})"
    if status == 507:
        return StorageFullError(f"store has no space left ({answer})", uri)
    if is_about_token(error):
        message = f"no credentials are set, or they were exchanged for no token ({answer})"
    elif _is_refused(name, status):
        message = f"store refused to {operation} ({answer}); check credentials and permissions"
    if _is_refused(name, status):
        return InvalidRequestError(message, uri, kind="refused")
    return StorageUnavailableError(message, uri)


def _is_refused(name: str, status: int) -> bool:
    return name in _REFUSED or (400 <= status < 500 and status not in (408, 409, 429))
