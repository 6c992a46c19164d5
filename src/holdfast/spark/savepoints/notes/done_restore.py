"""The note of a restore that is done, so that it can be repeated too.

    .holdfast-restored    {"restore":{…},"paths":{…}}, written before the notes of the unfinished restore go

It is needed because a process that is killed behind the last step has told nobody which settings the query
needs.
"""

import msgspec

from holdfast.spark.checkpoint_location import delete, read_json_in, replace
from holdfast.spark.savepoints.notes.unfinished import Unfinished

RESTORED_FILE = ".holdfast-restored"


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """A restore that is done.

    Attributes:
        restore: The restore that was done.
        paths: What the restore has put at the beginning of URIs of input files, by what was there.
    """

    restore: Unfinished
    paths: dict[str, str]


def restored_in(checkpoint_location: str) -> Restored | None:
    """The restore that made this checkpointLocation; None if there was none, or a roll back since.

    Raises:
        CheckpointCorruptedError: The note can't be read.
    """
    return read_json_in(
        checkpoint_location,
        RESTORED_FILE,
        Restored,
        description="the record of what was restored here",
    )


def note_restored(checkpoint_location: str, restored: Restored) -> None:
    """Note that a restore is done."""
    replace(f"{checkpoint_location}/{RESTORED_FILE}", msgspec.json.encode(restored))


def forget_restored(checkpoint_location: str) -> None:
    """Delete the note: what lies here is not what was restored any more."""
    delete([f"{checkpoint_location}/{RESTORED_FILE}"])
