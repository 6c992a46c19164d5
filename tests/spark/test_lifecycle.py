"""Triggers, restarts, repeated batches, concurrent and ended queries."""

import gc
import json
import logging
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from contracts.patience import HANGS_S
from jobs.job import Job
from jobs.operators import Groups
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from holdfast import progress_of
from holdfast.errors import InvalidRequestError
from holdfast.spark.engines import RunningQuery
from holdfast.spark.query import StatefulQuery, queries, query_run


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:.*once.*")
def test_query_resumes_with_any_trigger(job: Job) -> None:
    job.feed(files=2, rows=20)
    job.run(job.operator(Groups(7)))
    job.feed(files=1, rows=20)
    job.start(job.operator(Groups(7)), once=True).awaitTermination()
    assert job.checkpoint_ids() == [3]
    job.feed(files=2, rows=20)
    committed = threading.Event()

    class Sink:
        def __call__(self, rows: DataFrame, batch_id: int) -> None:
            job.write(rows, batch_id)

        def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
            if checkpoint_id == 5:
                committed.set()

    query = job.start(job.operator(Groups(7), sink=Sink()), processingTime="0 seconds")
    assert committed.wait(HANGS_S)
    query.stop()
    assert query.exception() is None
    assert job.checkpoint_ids() == [5]
    job.check_every_row_is_there_once()


def test_spark_refuses_a_continuous_trigger(job: Job) -> None:
    rate = job.spark.readStream.format("rate").load()
    with pytest.raises(PySparkException, match=r"(?i)continuous"):
        job.start(job.operator(Groups(7)), rows=rate, continuous="1 second").awaitTermination()
    assert not job.checkpoints.exists()


@pytest.mark.exhaustive
def test_several_queries_run_at_once_with_their_operators(
    spark: SparkSession, tmp_path: Path
) -> None:
    jobs = [Job(spark, tmp_path / f"job {number}") for number in range(3)]
    for job in jobs:
        job.feed(files=2, rows=20)
    with ThreadPoolExecutor(len(jobs)) as pool:
        chains = [job.chain(job.part(Groups(7), "operator")) for job in jobs]
        queries = [
            job.start(chain, availableNow=True) for job, chain in zip(jobs, chains, strict=True)
        ]
        list(pool.map(lambda query: query.awaitTermination(), queries))
    for job in jobs:
        assert job.checkpoint_ids() == [2]
        job.check_every_row_is_there_once()


@pytest.mark.exhaustive
def test_repeated_restarts_without_new_rows_change_nothing(job: Job) -> None:
    job.feed(files=1, rows=20)
    job.run(job.operator(Groups(7)))
    for _ in range(3):
        job.run(job.operator(Groups(7)))  # Spark hands over no batch
        job.repeat_last_batch()
        job.run(job.operator(Groups(7)))
    job.feed(files=1, rows=20)
    job.run(job.operator(Groups(7)))
    assert job.checkpoint_ids() == [2]
    job.check_every_row_is_there_once()


@pytest.mark.exhaustive
def test_skipped_batch_still_commits_the_state_of_spark(job: Job) -> None:
    job.settings["spark.holdfast.checkpoint.num-retained"] = "9"
    seen: dict[int, dict[int, int]] = {}

    def sink(rows: DataFrame, batch_id: int) -> None:
        seen[batch_id] = {row.digit: row["count"] for row in rows.collect()}

    def run() -> None:
        counts = job.stream().selectExpr("id % 10 as digit").groupBy("digit").count()
        operator = job.operator(Groups(1), sink=sink)
        job.start(operator, rows=counts, mode="update", availableNow=True).awaitTermination()

    job.feed(files=2, rows=20)
    run()
    job.repeat_last_batch()
    for file in (job.spark_checkpoint / "state").rglob("*.delta"):
        if file.name == "2.delta":  # batch 1 wrote it; Spark "died" before
            file.unlink()
    del seen[1]
    job.feed(files=1, rows=20)
    run()
    assert sorted(seen) == [0, 2]
    assert seen[2] == dict.fromkeys(range(10), 6)
    assert job.checkpoint_ids() == [1, 2, 3]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "columns",
    [
        pytest.param(["id", "at", "name"], id="kept"),
        pytest.param(["id", "name"], id="dropped"),
        pytest.param(["id", "at as moment"], id="renamed"),
        pytest.param(["id", "struct(at) as event"], id="nested"),
        pytest.param(["id", "at + interval 1 hour as at"], id="computed"),
    ],
)
def test_skipped_batch_still_advances_the_watermark_of_spark(job: Job, columns: list[str]) -> None:
    def run() -> None:
        rows = job.stream().withWatermark("at", "1 second").selectExpr(*columns)
        operator = job.operator(Groups(1), sink=lambda _rows, _batch_id: None)
        job.start(operator, rows=rows, availableNow=True).awaitTermination()

    job.feed(files=2)
    run()
    job.repeat_last_batch()
    job.feed(files=1)
    run()
    _, batch, *_ = (job.spark_checkpoint / "offsets" / "2").read_text().splitlines()
    assert json.loads(batch)["batchWatermarkMs"] == 198_000  # row 199 of batch 1 is at second 199
    assert job.checkpoint_ids() == [3]


def test_log_and_metadata_have_the_statistics_of_a_batch(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    job.feed(files=1, rows=20)
    with caplog.at_level(logging.INFO, "holdfast"):
        job.run(job.chain(job.part(Groups(10), "first"), job.part(Groups(1), "second")))
    metadata = job.latest().metadata
    subtasks = [
        subtask for state in metadata.operators.values() for subtask in state.subtasks.values()
    ]
    statistics = [subtask.statistics for subtask in subtasks if subtask.statistics is not None]
    assert len(statistics) == 4
    assert all(measured.process_ms > 0 and measured.restore_ms > 0 for measured in statistics)
    rows_in = sum(measured.rows_in for measured in statistics)
    rows_out = sum(measured.rows_out for measured in statistics)
    held = len(job.ids_held("first")) + len(job.ids_held("second"))
    assert rows_in - rows_out == held
    state_bytes = sum(measured.state_bytes for measured in statistics)
    assert state_bytes == metadata.state_bytes
    (line,) = [text for text in caplog.messages if text.startswith("completed checkpoint")]
    assert f"completed checkpoint 1 of job {metadata.job_id} (batch 0)" in line
    assert f"20 rows in, {rows_out} rows out, {state_bytes} bytes of state" in line  # of `first`
    assert progress_of(metadata).batch_id == 0


@pytest.mark.exhaustive
def test_batch_with_other_offsets_is_a_gap(job: Job) -> None:
    job.feed(files=2, rows=20)
    job.run(job.operator(Groups(7)))
    for log in ("offsets", "commits", "sources/0"):
        for file in (job.spark_checkpoint / log).glob("*1*"):
            file.unlink()
        for file in (job.spark_checkpoint / log).glob(".*1*"):
            file.unlink()
    job.feed(files=1, rows=20)  # with other files, batch 1 is another batch
    with pytest.raises(StreamingQueryException, match=r"BatchGapError.* planned its batch 1 again"):
        job.run(job.operator(Groups(7)))
    assert job.checkpoint_ids() == [2]


@pytest.mark.exhaustive
def test_sink_changing_the_job_group_is_declined(job: Job) -> None:
    job.feed(files=1)

    def change_group(rows: DataFrame, batch_id: int) -> None:
        rows.sparkSession.sparkContext.setJobGroup("mine", "a label")
        job.write(rows, batch_id)

    with pytest.raises(StreamingQueryException, match="changes the job group"):
        job.run(job.operator(Groups(1), sink=change_group))
    assert job.checkpoint_ids() == []
    job.run(job.operator(Groups(1)))
    job.check_every_row_is_there_once()


def test_refused_query_leaves_its_link_unchanged(job: Job, tmp_path: Path) -> None:
    job.feed(files=1, rows=20)
    job.run(job.operator(Groups(7)))
    link = job.spark_checkpoint / "holdfast.json"
    before = link.read_text()
    assert str(job.checkpoints) in before
    job.feed(files=1, rows=20)
    job.settings["spark.holdfast.checkpoint.dir"] = f"file://{tmp_path}/elsewhere"
    with pytest.raises(StreamingQueryException, match="BatchGapError"):
        job.run(job.operator(Groups(7)))
    assert link.read_text() == before


QUERIES = 1200


class QueryId(str):
    """An id whose life can be observed."""

    __slots__ = ("__weakref__",)


class Engine:
    """The way to a Spark whose current query has the latest id."""

    def __init__(self) -> None:
        self.session = object()
        self.ids: list[weakref.ref[QueryId]] = []

    def running_query(self, known: RunningQuery | None) -> RunningQuery:
        del known
        query_id = QueryId(f"query-{len(self.ids)}")
        self.ids.append(weakref.ref(query_id))
        return RunningQuery(query_id, "run", "file:///nowhere")

    def stop_error(self, query: RunningQuery, error: Exception) -> None:
        """Return None, because no query was stopped."""


def test_ended_queries_are_forgotten_beyond_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise InvalidRequestError("as planned")

    engine = Engine()
    monkeypatch.setattr(queries, "engine_of", lambda *_: engine)
    monkeypatch.setattr(query_run.QueryRun, "start", fail)
    function = StatefulQuery(lambda *_: None, {})
    batch: Any = SimpleNamespace(sparkSession=engine.session)
    for _ in range(QUERIES):
        with suppress(InvalidRequestError):
            function(batch, 0)
    assert len(engine.ids) == QUERIES
    gc.collect()  # errors refer to their frames, which refer to the errors
    assert sum(query_id() is not None for query_id in engine.ids) <= 1000
