"""The file `holdfast.json` in Spark's checkpointLocation, which leads to Holdfast's checkpoints.

{"checkpoint_dir":"s3://bucket/holdfast","job_id":"totals","storage":"filesystem"}
"""

import msgspec

from holdfast.spark.checkpoint_location.small_files import names_in, read_json_in

LINK_FILE = "holdfast.json"
"""The name of the file, directly in the checkpointLocation."""


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


def read_link(checkpoint_location: str) -> Link | None:
    """Where a query keeps the state of its operators; None if it has had no operators.

    Raises:
        CheckpointCorruptedError: The file holds something else.
    """
    what = "what leads to the query's checkpoints"
    return read_json_in(checkpoint_location, LINK_FILE, Link, what=what)


def has_link(checkpoint_location: str) -> bool:
    """Whether a query has had operators, as its checkpointLocation says."""
    return LINK_FILE in names_in(checkpoint_location)
