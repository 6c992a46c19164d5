"""Queries with several operators: one checkpoint for all, with any plan between them."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest
from jobs.job import Job
from jobs.operators import AlwaysFails, FailsOnce, Groups, NotifiedGroups
from jobs.session import cached_dataset_count, session_with
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from holdfast import stateful_query
from holdfast.errors import InvalidRequestError
from holdfast.spark.operators import Sink
from holdfast.spark.query import StatefulOperator

ALLOW = "spark.holdfast.checkpoint.allow-non-restored-state"


def test_chain_loses_no_row_over_failures_and_restarts(job: Job) -> None:
    job.feed(files=3, rows=50)

    def chain(sink: Sink | None = None) -> Callable[[DataFrame, int], None]:
        return job.chain(job.part(Groups(7), "first"), job.part(Groups(11), "second"), sink=sink)

    with pytest.raises(StreamingQueryException, match="as planned"):
        job.run(chain(job.write_and_fail_in(1)))
    assert job.checkpoint_ids() == [1]
    job.run(chain())
    job.check_every_row_is_there_once("first", "second")
    assert job.ids_held("second")
    assert set(job.latest().metadata.operators) == {"first", "second"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_retried_task_of_a_chain_counts_once(job: Job, tmp_path: Path, *, first: bool) -> None:
    job.feed(files=2, rows=50)
    parts = [job.part(FailsOnce(7, tmp_path / "failed"), "fails"), job.part(Groups(11), "groups")]
    job.run(job.chain(*(parts if first else reversed(parts))))
    assert (tmp_path / "failed").exists()
    job.check_every_row_is_there_once("fails", "groups")


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_failing_operator_of_a_chain_leaves_no_checkpoint(job: Job, *, first: bool) -> None:
    job.feed(files=1)
    parts = [job.part(AlwaysFails(7), "fails"), job.part(Groups(1), "groups")]
    with pytest.raises(StreamingQueryException, match="as planned"):
        job.run(job.chain(*(parts if first else reversed(parts))))
    assert job.checkpoint_ids() == []
    assert list(job.job_directory.glob("chk-*/*")) == []


@pytest.mark.exhaustive
def test_persisted_rows_go_to_two_operators_and_the_sink(job: Job) -> None:
    job.feed(files=2, rows=50)
    shared = job.part(Groups(7), "shared", persist=True)
    odd, even = job.part(Groups(3), "odd"), job.part(Groups(5), "even", persist=True)
    counted: list[int] = []

    def process(rows: DataFrame, batch_id: int) -> None:
        rows = shared.apply(rows)
        counted.append(rows.count())
        odd_rows = odd.apply(rows.where("id % 2 = 1"))
        job.write(odd_rows.union(even.apply(rows.where("id % 2 = 0"))), batch_id)

    job.run(stateful_query(process, shared, odd, even))
    job.check_every_row_is_there_once("shared", "odd", "even")
    assert sum(counted) == len(job.ids_fed) - len(job.ids_held("shared"))
    assert cached_dataset_count(job.spark) == 0


@pytest.mark.exhaustive
def test_unread_operators_are_run_by_the_coordinator(job: Job) -> None:
    job.feed(files=2, rows=50)
    names = ("read", "unread", "after unread", "without rows")
    read, unread, after_unread, without_rows = (job.part(Groups(7), uid) for uid in names)

    def process(rows: DataFrame, batch_id: int) -> None:
        after_unread.apply(unread.apply(rows))
        without_rows.apply(rows.limit(0))
        job.write(read.apply(rows), batch_id)

    job.run(stateful_query(process, read, unread, after_unread, without_rows))
    assert job.checkpoint_ids() == [2]
    job.check_every_row_is_there_once("read")
    assert len(job.ids_held("unread")) == len(job.ids_held("read"))
    assert job.ids_held("without rows") == []


def test_backend_of_an_unknown_operator_warns_once(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    job.feed(files=2, rows=5)
    setting = {"spark.holdfast.state.backend": "heap, first=columnar, misspelled=heap"}
    with session_with(job.spark, setting):
        job.run(job.chain(job.part(Groups(7), "second"), job.part(Groups(7), "first")))
    job.check_every_row_is_there_once("first", "second")
    (warning,) = (text for text in caplog.messages if "state.backend" in text)
    assert "set for 'misspelled'" in warning
    assert "it has 'first', 'second'" in warning


def read_prefix(first: StatefulOperator, second: StatefulOperator, rows: DataFrame) -> None:
    second.apply(first.apply(rows)).limit(3).collect()


def read_prefix_of_the_first(
    first: StatefulOperator, second: StatefulOperator, rows: DataFrame
) -> None:
    second.apply(first.apply(rows).limit(3)).count()


def write_both(first: StatefulOperator, second: StatefulOperator, rows: DataFrame) -> None:
    rows = first.apply(rows)
    rows.count()
    second.apply(rows).count()


def join_the_first_with_itself(
    first: StatefulOperator, second: StatefulOperator, rows: DataFrame
) -> None:
    rows = first.apply(rows)
    second.apply(rows.where("id < 30").union(rows.where("id >= 30"))).count()


def forget_the_second(first: StatefulOperator, second: StatefulOperator, rows: DataFrame) -> None:
    first.apply(rows).count()


Uses = Callable[[StatefulOperator, StatefulOperator, DataFrame], None]
DECLINED: dict[Uses, str] = {
    write_both: "operator 'one' runs its rows through the operator more than once",
    read_prefix: "operator 'two' reads its rows only in part",
    read_prefix_of_the_first: "operator 'one' reads its rows only in part",
    join_the_first_with_itself: "persist=True",
    forget_the_second: r"operators \['two'\] were not applied",
}


@pytest.mark.parametrize(
    "uses",
    [
        write_both,
        *(pytest.param(uses, marks=pytest.mark.exhaustive) for uses in list(DECLINED)[1:]),
    ],
)
def test_wrong_use_of_operators_makes_no_checkpoint(job: Job, uses: Uses) -> None:
    job.feed(files=1, rows=1000)
    first, second = job.part(Groups(1), "one"), job.part(Groups(1), "two")
    with pytest.raises(StreamingQueryException, match=DECLINED[uses]):
        job.run(stateful_query(lambda rows, _: uses(first, second, rows), first, second))
    assert job.checkpoint_ids() == []


def test_operator_is_applied_once_in_a_batch_to_a_dataframe(job: Job) -> None:
    job.feed(files=1)
    listed, unlisted, other = (job.part(Groups(1), uid) for uid in ("one", "two", "one"))

    def process(rows: DataFrame, batch_id: int) -> None:
        for operator in (unlisted, other):
            with pytest.raises(
                InvalidRequestError, match="pass the same object also to stateful_query"
            ):
                operator.apply(rows)
        with pytest.raises(InvalidRequestError, match=r"call its apply\("):
            listed(rows, batch_id)
        with pytest.raises(InvalidRequestError, match="'one' must be a DataFrame, not list"):
            listed.apply(cast("DataFrame", rows.collect()))
        with pytest.raises(InvalidRequestError, match="'one' are a streaming DataFrame"):
            listed.apply(rows.sparkSession.readStream.format("rate").load())
        listed.apply(rows)
        with pytest.raises(InvalidRequestError, match="'one' is applied twice"):
            listed.apply(rows)

    job.run(stateful_query(process, listed))
    assert job.checkpoint_ids() == [1]


def test_bad_arguments_of_stateful_query_are_refused(spark: SparkSession, job: Job) -> None:
    operator = job.part(Groups(1), "one")
    with pytest.raises(InvalidRequestError, match="two operators have the uid 'one'"):
        stateful_query(job.write, operator, job.part(Groups(2), "one"))
    with pytest.raises(InvalidRequestError, match="'operator' has a sink"):
        stateful_query(job.write, job.operator(Groups(1)))
    with pytest.raises(InvalidRequestError, match="no operator was given"):
        stateful_query(job.write)
    with pytest.raises(InvalidRequestError, match="Groups is not an operator"):
        stateful_query(job.write, cast("StatefulOperator", Groups(1)))
    with pytest.raises(InvalidRequestError, match="must be a function of rows"):
        stateful_query(cast("Sink", 5), operator)
    with pytest.raises(InvalidRequestError, match="outside of a micro-batch"):
        operator.apply(spark.range(1))


@pytest.mark.exhaustive
def test_second_call_in_one_batch_is_an_error(job: Job) -> None:
    job.feed(files=2)
    first, other = job.operator(Groups(7)), job.operator(Groups(7), uid="other")
    job.settings[ALLOW] = "true"
    for second in (first, other, first):  # the first call completes batch 0, then skips it

        def twice(rows: DataFrame, batch_id: int, second: StatefulOperator = second) -> None:
            first(rows.where("id % 2 = 0"), batch_id)
            second(rows.where("id % 2 = 1"), batch_id)

        with pytest.raises(StreamingQueryException, match="called in batch 0 after another call"):
            job.run(twice)
    assert job.checkpoint_ids() == [1]


@pytest.mark.exhaustive
def test_call_after_a_failed_one_is_an_error(job: Job) -> None:
    job.feed(files=1)
    operator = job.operator(Groups(10), sink=fail)

    def call_twice(rows: DataFrame, batch_id: int) -> None:
        with suppress(OSError):
            operator(rows, batch_id)
        operator(rows, batch_id)

    with pytest.raises(StreamingQueryException, match="Let its error through: the batch is rep"):
        job.run(call_twice)
    assert job.checkpoint_ids() == []
    job.run(job.operator(Groups(10)))
    job.check_every_row_is_there_once()


def fail(_rows: DataFrame, _batch_id: int) -> None:
    raise OSError("as planned")


@pytest.mark.exhaustive
def test_operators_can_be_added_and_removed(job: Job) -> None:
    job.feed(files=1, rows=50)
    stays = job.part(Groups(7), "stays")
    goes, comes = (job.part(Groups(11), uid) for uid in ("goes", "comes"))
    job.run(job.chain(stays, goes))
    held, gone = job.ids_held("stays"), job.ids_held("goes")
    job.feed(files=1, rows=50)
    with pytest.raises(StreamingQueryException, match=ALLOW):
        job.run(job.chain(stays, comes))
    job.settings[ALLOW] = "true"
    job.run(job.chain(stays, comes))
    assert held
    assert gone
    assert set(job.latest().metadata.operators) == {"stays", "comes"}
    written = [*job.ids_written(), *job.ids_held("stays"), *job.ids_held("comes")]
    assert sorted([*written, *gone]) == job.ids_fed


class Process:
    """A function of a query that is also a listener."""

    def __init__(self, operator: StatefulOperator) -> None:
        self.operator = operator
        self.notifications: list[tuple[str, int]] = []

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        self.operator.apply(rows)
        if batch_id == 2:
            raise OSError("as planned")

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.notifications.append(("complete", checkpoint_id))

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.notifications.append(("aborted", checkpoint_id))


def test_function_and_operators_are_notified_of_checkpoints(job: Job) -> None:
    job.feed(files=1)
    function = NotifiedGroups(70)
    operator = job.part(function, "operator")
    process = Process(operator)
    query = stateful_query(process, operator)
    job.run(query)
    job.feed(files=2)
    with pytest.raises(StreamingQueryException, match="as planned"):
        job.run(query)
    expected = [("complete", 1), ("complete", 1), ("complete", 2), ("aborted", 3)]
    assert process.notifications == function.notifications == expected
