"""A stopped query that may be rolled back, and the roll back that was begun there before."""

from dataclasses import dataclass
from typing import Self

from holdfast.errors import InvalidRequestError
from holdfast.spark import sessions
from holdfast.spark.savepoints.stored_query import QueryAddress, StoredQuery
from holdfast.spark.savepoints.unfinished import Unfinished, is_finished, unfinished_in

ROLL_BACK = "roll back"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedQuery:
    """A query that doesn't run here, and to whose checkpointLocation nothing but a roll back is being done.

    Attributes:
        stored: What the query has stored.
        begun: The roll back that was begun before and is not finished; None if there is none.
        is_left_over: Whether the note of a roll back that is finished is still there.
    """

    stored: StoredQuery
    begun: Unfinished | None
    is_left_over: bool

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
        begun = unfinished_in(location)
        is_left_over = begun is not None and is_finished(location, begun)
        if is_left_over:
            begun = None  # it ended right before the note went
        if begun is not None and begun.kind != ROLL_BACK:
            raise refusal(begun, location)
        stored = address.stored_query(query_id=begun.query_id if begun else None)
        if begun is not None and not _is_job_of(stored, begun):
            raise refusal(begun, location)
        if stored.query_id in sessions.active_query_ids():
            raise InvalidRequestError("query is running; stop it first", location)
        return cls(stored=stored, begun=begun, is_left_over=is_left_over)


def refusal(begun: Unfinished, location: str) -> InvalidRequestError:
    """The error that says what was begun here before, and has to be finished first."""
    to = f" to batch {begun.to}" if begun.kind == ROLL_BACK else ""
    if begun.job_id is not None:
        to += f" with job {begun.job_id} in {begun.checkpoint_dir}"
    message = f"a {begun.kind}{to} was begun here and is not finished; repeat that first"
    return InvalidRequestError(message, location)


def _is_job_of(stored: StoredQuery, begun: Unfinished) -> bool:
    """Whether the job of operators that was to go back goes back now, if there was one."""
    if begun.job_id is None:
        return True  # or it was begun by a version that didn't note it
    return (
        stored.access is not None
        and stored.job_id == begun.job_id
        and stored.checkpoint_dir == begun.checkpoint_dir
    )
