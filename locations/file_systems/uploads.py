"""Files that were begun and never finished, on stores that keep those."""

from collections.abc import Iterable

from holdfast.locations.file_systems.port import PendingUpload, UploadingFileSystem
from holdfast.locations.file_systems.registry import file_system_for


def pending_uploads(uri: str) -> list[PendingUpload]:
    """The uploads begun in a directory or below it; none on stores where nothing can be left."""
    file_system = file_system_for(uri)
    inner = file_system.inner
    if not isinstance(inner, UploadingFileSystem):
        return []
    return file_system.retrier.call("list_uploads", lambda: list(inner.list_uploads(uri)))


def abort_uploads(uploads: Iterable[PendingUpload]) -> None:
    """Abort the uploads that `pending_uploads` has found in one store."""
    pending = list(uploads)
    if not pending:
        return
    file_system = file_system_for(pending[0].uri)
    inner = file_system.inner
    if isinstance(inner, UploadingFileSystem):
        file_system.retrier.call("abort_uploads", lambda: inner.abort_uploads(pending))
