"""Directories that must not lie in each other, however their stores are spelled."""

from holdfast.common import uripath
from holdfast.errors import InvalidRequestError
from holdfast.locations.storages import without_marker
from holdfast.redaction import redact


def check_apart(checkpoint_location: str, checkpoint_dir: str | None, job_id: str) -> None:
    """Refuse to keep checkpoints of operators among Spark's files, or Spark's files among checkpoints.

    A savepoint, a restore or a roll back copies and deletes everything of one side without the other.

    Args:
        checkpoint_location: Spark's own checkpoint directory for a query, as Spark or Holdfast has it.
        checkpoint_dir: Normalized URI of the directory with the jobs' directories; None if there is none.
        job_id: The query's job.

    Raises:
        InvalidRequestError: One of them lies in the other.
    """
    if checkpoint_dir is None:
        return
    directory = without_marker(checkpoint_dir)
    try:
        location = uripath.normalize(checkpoint_location)
    except InvalidRequestError:
        return  # Spark can use it; no checkpoint directory is spelled like that
    if is_within(directory, location) or is_within(location, uripath.join(directory, job_id)):
        message = (
            f"checkpoint directory {redact(checkpoint_dir)} and the query's checkpointLocation lie in each "
            "other; name a checkpoint directory beside it"
        )
        raise InvalidRequestError(message, checkpoint_location)


def is_within(uri: str, directory: str) -> bool:
    """Whether something is that directory, or lies anywhere below it; both normalized."""
    return f"{_plain(uri)}/".startswith(f"{_plain(directory)}/")


def _plain(uri: str) -> str:
    """One spelling for the same place: a store has several clients."""
    scheme = uripath.scheme(uri).removeprefix("fsspec+")
    rest = uri.partition("://")[2]
    return f"{'s3' if scheme == 's3a' else scheme}://{rest}"
