"""The notes that a restore and a roll back leave in a checkpointLocation, so that they can be repeated."""

from holdfast.spark.savepoints.notes.attempts import (
    Attempt,
    check_newest,
    is_attempt,
    newest_attempt,
)
from holdfast.spark.savepoints.notes.done_restore import (
    RESTORED_FILE,
    Restored,
    forget_restored,
    note_restored,
    restored_in,
)
from holdfast.spark.savepoints.notes.unfinished import Change, Unfinished, change_begun_in

__all__ = [
    "RESTORED_FILE",
    "Attempt",
    "Change",
    "Restored",
    "Unfinished",
    "change_begun_in",
    "check_newest",
    "forget_restored",
    "is_attempt",
    "newest_attempt",
    "note_restored",
    "restored_in",
]
