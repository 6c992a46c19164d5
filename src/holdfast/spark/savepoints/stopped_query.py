"""A stopped query that may be rolled back, and the roll back that was begun there before."""

from dataclasses import dataclass
from typing import Self

from holdfast.errors import InvalidRequestError
from holdfast.spark import sessions
from holdfast.spark.savepoints.notes import Change, change_begun_in
from holdfast.spark.savepoints.stored_query import QueryAddress, StoredQuery

ROLL_BACK = "roll back"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedQuery:
    """A query that doesn't run here, and to whose checkpointLocation nothing but a roll back is being done.

    Attributes:
        stored: The stored files of the query.
        begun: The roll back that was begun before and is not finished; None if there is none.
        left_over: A change that is finished, and whose note is still there; None if there is none.
    """

    stored: StoredQuery
    begun: Change | None
    left_over: Change | None

    @classmethod
    def at(cls, address: QueryAddress) -> Self:
        """Look the query up.

        Args:
            address: The query, by the URI of its checkpointLocation.

        Raises:
            InvalidRequestError: The query runs, or something else was begun here and is not finished;
                or the address can't be used.
        """
        location = address.reached_location()
        begun, left_over = change_begun_in(location), None
        if begun is not None and begun.is_finished():
            begun, left_over = None, begun  # it ended right before the note went
        if begun is not None and begun.note.kind != ROLL_BACK:
            raise refusal(begun)
        stored = address.stored_query(query_id=begun.note.query_id if begun else None)
        if begun is not None and not _is_job_of(stored, begun):
            raise refusal(begun)
        if stored.query_id in sessions.active_query_ids():
            raise InvalidRequestError("query is running; stop it first", location)
        return cls(stored=stored, begun=begun, left_over=left_over)


def refusal(begun: Change) -> InvalidRequestError:
    """The error that says what was begun here before, and has to be finished first."""
    note = begun.note
    to = f" to batch {note.to}" if note.kind == ROLL_BACK else ""
    if note.job_id is not None:
        to += f" with job {note.job_id} in {note.checkpoint_dir}"
    message = f"a {note.kind}{to} was begun here and is not finished; repeat that first"
    return InvalidRequestError(message, begun.location)


def _is_job_of(stored: StoredQuery, begun: Change) -> bool:
    """Whether the job of operators that was to go back goes back now, if there was one."""
    if begun.note.job_id is None:
        return True  # or it was begun by a version that didn't note it
    return (
        stored.access is not None
        and stored.job_id == begun.note.job_id
        and stored.checkpoint_dir == begun.note.checkpoint_dir
    )
