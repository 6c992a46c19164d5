"""From Spark's checkpointLocation to Holdfast's checkpoints: a small file that leads there."""

import msgspec

from holdfast.errors import CheckpointCorruptedError

LINK_FILE = "holdfast.json"
"""Its name, directly in the checkpointLocation."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """Where a query keeps the state of its operators.

    Attributes:
        checkpoint_dir: URI of the directory with the jobs' directories; None if there is none.
        job_id: The job.
        storage: `filesystem` or `memory`.
    """

    checkpoint_dir: str | None
    job_id: str
    storage: str


def encode_link(link: Link) -> str:
    """The text of the file."""
    return msgspec.json.encode(link).decode()


def decode_link(text: str | bytes, *, uri: str) -> Link:
    """Read the text of the file.

    Args:
        text: The whole file.
        uri: The file, for errors.

    Raises:
        CheckpointCorruptedError: It says something else.
    """
    try:
        return msgspec.json.decode(text, type=Link)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        message = f"what leads to the query's checkpoints can't be read ({error})"
        raise CheckpointCorruptedError(message, uri) from error
