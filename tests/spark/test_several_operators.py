"""Queries with several operators: one checkpoint for all, whatever stands between them."""

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


def check_every_row_is_there_once(job: Job, *uids: str) -> None:
    held = [i for uid in uids for i in job.ids_held(uid)]
    assert sorted([*job.ids_written(), *held]) == job.ids_fed


def test_a_chain_lets_each_row_through_once_over_failures_and_restarts(job: Job) -> None:
    job.feed(files=3, rows=50)

    def fails_in_batch_1(rows: DataFrame, batch_id: int) -> None:
        job.write(rows, batch_id)
        if batch_id == 1:
            raise OSError("as planned")

    def chain(sink: Sink | None = None) -> Callable[[DataFrame, int], None]:
        return job.chain(job.part(Groups(7), "first"), job.part(Groups(11), "second"), sink=sink)

    with pytest.raises(StreamingQueryException, match="as planned"):
        job.run(chain(fails_in_batch_1))
    assert job.checkpoint_ids() == [1]
    job.run(chain())
    check_every_row_is_there_once(job, "first", "second")
    assert job.ids_held("second")
    assert set(job.latest().metadata.operators) == {"first", "second"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_a_task_of_any_operator_of_a_chain_that_is_tried_again_counts_once(
    job: Job, tmp_path: Path, *, first: bool
) -> None:
    job.feed(files=2, rows=50)
    parts = [job.part(FailsOnce(7, tmp_path / "failed"), "fails"), job.part(Groups(11), "groups")]
    job.run(job.chain(*(parts if first else reversed(parts))))
    assert (tmp_path / "failed").exists()
    check_every_row_is_there_once(job, "fails", "groups")


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_an_operator_of_a_chain_that_fails_leaves_no_checkpoint(job: Job, *, first: bool) -> None:
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
    check_every_row_is_there_once(job, "shared", "odd", "even")
    assert sum(counted) == len(job.ids_fed) - len(job.ids_held("shared"))
    assert cached_dataset_count(job.spark) == 0


@pytest.mark.exhaustive
def test_what_nobody_reads_is_run_by_the_coordinator(job: Job) -> None:
    job.feed(files=2, rows=50)
    names = ("read", "unread", "behind", "without rows")
    read, unread, behind, nothing = (job.part(Groups(7), uid) for uid in names)

    def process(rows: DataFrame, batch_id: int) -> None:
        behind.apply(unread.apply(rows))
        nothing.apply(rows.limit(0))
        job.write(read.apply(rows), batch_id)

    job.run(stateful_query(process, read, unread, behind, nothing))
    assert job.checkpoint_ids() == [2]
    check_every_row_is_there_once(job, "read")
    assert len(job.ids_held("unread")) == len(job.ids_held("read"))
    assert job.ids_held("without rows") == []


def test_a_backend_for_an_operator_that_there_is_not_is_said_once_with_those_that_there_are(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    job.feed(files=2, rows=5)
    setting = {"spark.holdfast.state.backend": "heap, first=columnar, misspelt=heap"}
    with session_with(job.spark, setting):
        job.run(job.chain(job.part(Groups(7), "second"), job.part(Groups(7), "first")))
    check_every_row_is_there_once(job, "first", "second")
    (warning,) = (text for text in caplog.messages if "state.backend" in text)
    assert "set for 'misspelt'" in warning
    assert "it has 'first', 'second'" in warning


def glimpses(first: StatefulOperator, second: StatefulOperator, rows: DataFrame) -> None:
    second.apply(first.apply(rows)).limit(3).collect()


def reads_the_first_only_in_part(
    first: StatefulOperator, second: StatefulOperator, rows: DataFrame
) -> None:
    second.apply(first.apply(rows).limit(3)).count()


def writes_the_first_too(
    first: StatefulOperator, second: StatefulOperator, rows: DataFrame
) -> None:
    rows = first.apply(rows)
    rows.count()
    second.apply(rows).count()


def joins_the_first_with_itself(
    first: StatefulOperator, second: StatefulOperator, rows: DataFrame
) -> None:
    rows = first.apply(rows)
    second.apply(rows.where("id < 30").union(rows.where("id >= 30"))).count()


def forgets_one(first: StatefulOperator, second: StatefulOperator, rows: DataFrame) -> None:
    first.apply(rows).count()


Uses = Callable[[StatefulOperator, StatefulOperator, DataFrame], None]
DECLINED: dict[Uses, str] = {
    writes_the_first_too: "operator 'one' runs its rows through the operator more than once",
    glimpses: "operator 'two' reads its rows only in part",
    reads_the_first_only_in_part: "operator 'one' reads its rows only in part",
    joins_the_first_with_itself: "persist=True",
    forgets_one: r"operators \['two'\] were not applied",
}


@pytest.mark.parametrize(
    "uses",
    [
        writes_the_first_too,
        *(pytest.param(uses, marks=pytest.mark.exhaustive) for uses in list(DECLINED)[1:]),
    ],
)
def test_a_function_that_uses_operators_in_the_wrong_way_makes_no_checkpoint(
    job: Job, uses: Uses
) -> None:
    job.feed(files=1, rows=1000)
    first, second = job.part(Groups(1), "one"), job.part(Groups(1), "two")
    with pytest.raises(StreamingQueryException, match=DECLINED[uses]):
        job.run(stateful_query(lambda rows, _: uses(first, second, rows), first, second))
    assert job.checkpoint_ids() == []


def test_an_operator_is_applied_once_in_a_batch_and_to_rows_that_can_be_read(job: Job) -> None:
    job.feed(files=1)
    told, untold, other = (job.part(Groups(1), uid) for uid in ("told", "untold", "told"))

    def process(rows: DataFrame, batch_id: int) -> None:
        for operator in (untold, other):
            with pytest.raises(
                InvalidRequestError, match="pass the same object also to stateful_query"
            ):
                operator.apply(rows)
        with pytest.raises(InvalidRequestError, match=r"call its apply\("):
            told(rows, batch_id)
        with pytest.raises(InvalidRequestError, match="'told' must be a DataFrame, not list"):
            told.apply(cast("DataFrame", rows.collect()))
        with pytest.raises(InvalidRequestError, match="'told' are a stream"):
            told.apply(rows.sparkSession.readStream.format("rate").load())
        told.apply(rows)
        with pytest.raises(InvalidRequestError, match="'told' is applied twice"):
            told.apply(rows)

    job.run(stateful_query(process, told))
    assert job.checkpoint_ids() == [1]


def test_bad_arguments_of_checkpointed_are_refused_at_once(spark: SparkSession, job: Job) -> None:
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


def test_a_second_call_in_one_batch_is_an_error_and_never_skipped(job: Job) -> None:
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


def test_a_call_after_one_that_failed_says_that_the_batch_is_repeated(job: Job) -> None:
    job.feed(files=1)
    operator = job.operator(Groups(10), sink=fails)

    def tries_again(rows: DataFrame, batch_id: int) -> None:
        with suppress(OSError):
            operator(rows, batch_id)
        operator(rows, batch_id)

    with pytest.raises(StreamingQueryException, match="Let its error through: the batch is rep"):
        job.run(tries_again)
    assert job.checkpoint_ids() == []
    job.run(job.operator(Groups(10)))
    assert sorted([*job.ids_written(), *job.ids_held()]) == job.ids_fed


def fails(_rows: DataFrame, _batch_id: int) -> None:
    raise OSError("as planned")


@pytest.mark.exhaustive
def test_operators_come_and_go_with_restarts(job: Job) -> None:
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
    """A function of a query that is a listener too."""

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


def test_the_function_of_a_query_and_its_operators_are_told_of_checkpoints(job: Job) -> None:
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
