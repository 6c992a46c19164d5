"""What a restore has made stays noted beside it: a restore that is done can be repeated too.

    .holdfast-restored    a JSON object, written before the notes go that say what is being done

Whoever is killed behind the last step has told nobody the settings that the query needs.
"""

import msgspec

from holdfast.spark.checkpoint_location import delete, names_in, read_json, replace
from holdfast.spark.savepoints.unfinished import Unfinished

RESTORED_FILE = ".holdfast-restored"


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """A restore that is done.

    Attributes:
        restore: What was done.
        paths: For the beginning of each URI of input files that it changed, what it is now.
    """

    restore: Unfinished
    paths: dict[str, str]


def restored_in(checkpoint_location: str) -> Restored | None:
    """The restore that made this checkpointLocation; None if none did, or it was rolled back since.

    Raises:
        CheckpointCorruptedError: The file doesn't say.
    """
    if RESTORED_FILE not in names_in(checkpoint_location):
        return None
    uri = f"{checkpoint_location}/{RESTORED_FILE}"
    return read_json(uri, Restored, what="what was restored here")


def note_restored(checkpoint_location: str, restored: Restored) -> None:
    """Note that it is done."""
    replace(f"{checkpoint_location}/{RESTORED_FILE}", msgspec.json.encode(restored))


def forget_restored(checkpoint_location: str) -> None:
    """Delete the note: what lies here is not what was restored any more."""
    delete([f"{checkpoint_location}/{RESTORED_FILE}"])
