"""Takes savepoints: copies the files that a query needs, then publishes the metadata that leads to them."""

import logging
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass

from pyspark.sql.streaming.query import StreamingQuery

from holdfast.common import SYSTEM_CLOCK, Clock
from holdfast.errors import CheckpointNotFoundError, InvalidRequestError
from holdfast.spark.checkpoint_location import is_within
from holdfast.spark.query import retained
from holdfast.spark.savepoints.configuration import savepoint_directory, use_stores
from holdfast.spark.savepoints.stored_query import Place, QueryAddress, StoredQuery
from holdfast.spark.savepoints.take.base import Base
from holdfast.spark.savepoints.take.canonical_state import SavepointFormat, check_format
from holdfast.spark.savepoints.take.query_copy import MissedError, copy_query

_log = logging.getLogger(__name__)

_MOST_ATTEMPTS = 5


def take_savepoint(
    query: StreamingQuery | Place,
    target: Place | None = None,
    *,
    checkpoint_dir: Place | None = None,
    job_id: str | None = None,
    base: Place | None = None,
    format: SavepointFormat = "native",
    operators: bool = True,
    configuration: Mapping[str, str] | None = None,
) -> str:
    """Take a savepoint of any streaming query; a running query goes on meanwhile.

    The savepoint holds all that a query needs to go on after its last completed batch: Spark's own logs and
    state, and the state of operators made by `stateful`. Without `base` it is a directory that holds
    everything itself: copied elsewhere it can still be restored. The rows that the sink has written
    are not in it.

    Args:
        query: The query; or the URI of its checkpointLocation, also of a query that is stopped.
        target: URI of the directory to make it in; by default `spark.holdfast.savepoint.dir`.
        checkpoint_dir: Where its operators have their checkpoints, if not where its
            checkpointLocation says.
        job_id: The job of its operators, likewise.
        base: An earlier savepoint of the query. What hasn't changed since is not copied, but referred to
            there: keep the base as long as this savepoint, and move both together.
        format: `native` copies keyed state in the files that its backend wrote, which is fast. `canonical`
            writes it anew, without what no longer counts: each state as sorted rows that every backend
            reads alike, whichever wrote them. It takes the time to read all rows, and has no base.
        operators: Whether the state of its operators goes in. False for a query that had operators once
            and has gone on without them.
        configuration: Settings of Spark (`spark.holdfast.*`, `spark.hadoop.*`) that say how its stores
            are reached, of a query that is given by URI; by default those of the session, if there
            is one.

    Returns:
        Pointer to the savepoint: the URI of its directory.

    Raises:
        InvalidRequestError: An argument can't be used; something is in the checkpointLocation that
            can't be copied; or the query has gone on without its operators.
        CheckpointNotFoundError: No batch is done yet, or files go while they are copied, time after
            time.
        CheckpointCorruptedError: A state is damaged.
        StorageUnavailableError: Something could not be read or written; no savepoint was made.
        OutcomeUnknownError: The store did not say whether it was made.
    """
    address = QueryAddress(
        query=query,
        checkpoint_dir=checkpoint_dir,
        job_id=job_id,
        operators=operators,
        configuration=configuration,
    )
    return _take(_Request(address=address, target=target, base=base, format=format))


def stop_with_savepoint(
    query: StreamingQuery,
    target: Place | None = None,
    *,
    checkpoint_dir: Place | None = None,
    job_id: str | None = None,
    base: Place | None = None,
    format: SavepointFormat = "native",
    operators: bool = True,
) -> str:
    """Stop a query, then take a savepoint of it. Arguments, result and errors of `take_savepoint`.

    A batch that runs is not waited for: it will be repeated. The query stays stopped also if no
    savepoint could be taken.
    """
    address = QueryAddress(
        query=query,
        checkpoint_dir=checkpoint_dir,
        job_id=job_id,
        operators=operators,
        configuration=None,
    )
    request = _Request(address=address, target=target, base=base, format=format)
    request.prepared()
    query.stop()
    return _take(request)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """A request for a savepoint: of which query, and where."""

    address: QueryAddress
    target: Place | None
    base: Place | None
    format: SavepointFormat
    clock: Clock = SYSTEM_CLOCK

    def prepared(self) -> tuple[StoredQuery, str, Base]:
        """The query, the directory and the base. Raises `InvalidRequestError`."""
        check_format(self.format, has_base=self.base is not None)
        stored = self.address.stored_query()
        directory = savepoint_directory(self.target, stored.configuration)
        if is_within(directory, stored.checkpoint_location):
            message = (
                "savepoint directory lies in the query's checkpointLocation, where nobody could tell "
                "its files from Spark's; name one beside it"
            )
            raise InvalidRequestError(message, directory)
        use_stores(stored.configuration, directory, None if self.base is None else str(self.base))
        if self.base is None:
            return stored, directory, Base()
        return stored, directory, Base.load(self.base, stored.query_id, stored.configuration)


def _take(request: _Request) -> str:
    missed: list[MissedError] = []
    while len(missed) < _MOST_ATTEMPTS:
        stored, directory, base = request.prepared()
        # The query's coordinator, if it is in this process, lets nothing go while it is copied.
        with retained(stored.job_id) if stored.access else nullcontext():
            try:
                return copy_query(
                    stored,
                    directory,
                    base,
                    operators=request.address.operators,
                    clock=request.clock,
                    format=request.format,
                )
            except MissedError as error:
                missed.append(error)
                if len(missed) > 1 and error.args == missed[-2].args:
                    break  # the query has not gone on: it will not come
                _log.info("a file is gone that was to be copied; trying again (%s)", error.error)
    failure = missed[-1].error
    message = (
        f"what a savepoint needs is not there, after {len(missed)} attempts: "
        f"{failure.args[0]}. If the query runs elsewhere and deletes it meanwhile, keep more: raise "
        "spark.holdfast.checkpoint.num-retained and spark.sql.streaming.minBatchesToRetain"
    )
    raise CheckpointNotFoundError(message, failure.location) from failure
