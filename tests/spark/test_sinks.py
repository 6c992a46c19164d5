"""Sinks that read their rows in other ways than once and whole."""

import pytest
from jobs.job import Job
from jobs.operators import Groups
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from holdfast.spark import Sink


def test_a_sink_without_an_action_is_completed_by_the_coordinator(job: Job) -> None:
    job.feed(files=3)
    job.run(job.operator(Groups(70), sink=lambda _rows, _batch_id: None))
    assert job.completed() == [3]
    job.feed(files=1)
    job.run(job.operator(Groups(70)))
    # 4 batches are 200 rows a subtask; what was let through in the first three is gone
    assert len(job.ids_written()) == 0


def test_a_sink_that_only_glimpses_is_completed_by_the_coordinator(job: Job) -> None:
    job.feed(files=2, rows=1000)
    seen: list[int] = []
    job.run(job.operator(Groups(1), sink=lambda rows, _: seen.append(len(rows.limit(3).collect()))))
    assert seen == [3, 3]
    assert job.completed() == [2]


def writes_twice(rows: DataFrame, _batch_id: int) -> None:
    rows.count()
    rows.count()


def looks_before_it_writes(rows: DataFrame, _batch_id: int) -> None:
    if not rows.isEmpty():
        rows.write.format("noop").mode("overwrite").save()


@pytest.mark.parametrize("sink", [writes_twice, looks_before_it_writes])
def test_a_sink_with_several_actions_has_to_persist(job: Job, sink: Sink) -> None:
    job.feed(files=1, rows=1000)
    with pytest.raises(StreamingQueryException, match="persist=True"):
        job.run(job.operator(Groups(10), sink=sink))
    assert job.completed() == []
    job.run(job.operator(Groups(10), sink=sink, persist=True))
    assert job.completed() == [1]


def test_persisted_rows_are_released_after_the_batch(spark: SparkSession, job: Job) -> None:
    job.feed(files=2)
    job.run(job.operator(Groups(10), persist=True))
    assert len(job.ids_written()) == 200
    assert spark.sparkContext._jsc.getPersistentRDDs().size() == 0


def test_a_sink_that_cannot_be_observed_is_refused(job: Job) -> None:
    job.feed(files=1)
    with pytest.raises(StreamingQueryException, match="can't be observed"):
        job.run(job.operator(Groups(10), sink=lambda rows, _: rows.rdd.count()))


def test_a_sink_may_shuffle(job: Job) -> None:
    job.feed(files=2)
    job.run(job.operator(Groups(10), sink=lambda rows, i: job.write(rows.repartition(3), i)))
    assert len(set(job.ids_written())) == len(job.ids_written()) == 200
