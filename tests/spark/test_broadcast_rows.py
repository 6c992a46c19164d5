"""Broadcast rows: a second, small stream of rows for every subtask."""

import os
from collections.abc import Callable
from typing import cast

import pytest
from jobs.job import Job
from jobs.operators import Groups, Rules
from jobs.session import temporary_directory_of
from pyspark.sql import DataFrame, Row, SparkSession

from holdfast import stateful_query
from holdfast.errors import InvalidRequestError
from holdfast.spark.query import StatefulOperator

RULES = "name string, rule string"


def rules_of(session: SparkSession, batch_id: int) -> DataFrame:
    """Return a rule that changes with each batch, and another one in the first batch."""
    rows = [("all", f"rule {batch_id}")] + ([("first", "x")] if batch_id == 0 else [])
    return session.createDataFrame(rows, RULES)


def test_all_subtasks_get_the_rules_of_a_batch_before_its_rows(job: Job) -> None:
    seen: list[tuple[int, Row]] = []

    def sink(rows: DataFrame, batch_id: int) -> None:
        seen.extend((batch_id, row) for row in rows.collect())

    def run(parallelism: int) -> None:
        options = {"schema": Rules.schema, "parallelism": parallelism, "sink": sink}
        job.feed(files=2, rows=12)
        job.run(job.operator(Rules(), broadcast=rules_of, **options))

    run(2)
    run(5)  # each subtask gets a copy of the stored rules
    assert sorted(row.id for _, row in seen) == job.ids_fed
    assert all(row.rule == f"rule {batch_id}" and row.rules == 2 for batch_id, row in seen)
    assert len({row.subtask for batch_id, row in seen if batch_id > 1}) > 2


@pytest.mark.exhaustive
def test_many_rules_are_sent_once_to_each_executor(job: Job) -> None:
    seen: list[int] = []
    temporary = temporary_directory_of(job.spark)
    before = sorted(os.listdir(temporary))
    operator = job.part(Rules(), "rules", schema=Rules.schema)

    def process(rows: DataFrame, batch_id: int) -> None:
        many = rows.sparkSession.range(20_000).selectExpr(
            "concat('a long name ', id) as name", "cast(id as string) as rule"
        )
        seen.extend(row.rules for row in operator.apply(rows, broadcast=many).collect())
        assert sorted(os.listdir(temporary)) != before

    job.feed(files=2, rows=4)
    job.run(stateful_query(process, operator))
    assert seen == [20_000] * 8
    assert sorted(os.listdir(temporary)) == before


def test_rules_may_come_from_the_batch_itself(job: Job) -> None:
    operator = job.part(Rules(), "rules", schema=Rules.schema)
    seen: list[Row] = []

    def process(rows: DataFrame, _batch_id: int) -> None:
        rules = rows.where("id % 10 = 3").selectExpr("'all' as name", "cast(id as string) as rule")
        seen.extend(operator.apply(rows.where("id % 10 <> 3"), broadcast=rules).collect())

    job.feed(files=2, rows=10)
    job.run(stateful_query(process, operator))
    assert {(row.id // 10, row.rule) for row in seen} == {(0, "3"), (1, "13")}
    assert len(seen) == 18


@pytest.mark.exhaustive
def test_rules_may_be_rows_of_the_outer_session(job: Job) -> None:
    outer = job.spark.createDataFrame([("all", "outer")], RULES)
    seen: list[Row] = []
    job.feed(files=1, rows=4)
    options = {"schema": Rules.schema, "sink": lambda rows, _: seen.extend(rows.collect())}
    job.run(job.operator(Rules(), broadcast=lambda _session, _batch_id: outer, **options))
    assert {row.rule for row in seen} == {"outer"}


def apply_without_rules(operator: StatefulOperator, rows: DataFrame) -> None:
    operator.apply(rows)


def apply_list(operator: StatefulOperator, rows: DataFrame) -> None:
    operator.apply(rows, broadcast=cast("DataFrame", [("all", "x")]))


def apply_stream(operator: StatefulOperator, rows: DataFrame) -> None:
    operator.apply(rows, broadcast=rows.sparkSession.readStream.format("rate").load())


def apply_duplicate_names(operator: StatefulOperator, rows: DataFrame) -> None:
    operator.apply(rows, broadcast=rows.selectExpr("name", "name as NAME"))


REFUSED: list[tuple[Callable[[StatefulOperator, DataFrame], None], str]] = [
    (apply_without_rules, "'rules', a BroadcastProcessFunction, must be a DataFrame, not NoneType"),
    (apply_list, "must be a DataFrame, not list"),
    (apply_stream, "'rules', a BroadcastProcessFunction, are a stream"),
    (apply_duplicate_names, "no duplicate names"),
]


def test_bad_rules_are_refused(job: Job) -> None:
    job.feed(files=1, rows=4)
    rules = job.part(Rules(), "rules", schema=Rules.schema)
    twice = job.part(Rules(), "twice", schema=Rules.schema, broadcast=rules_of)
    groups = job.part(Groups(1), "groups")

    def process(rows: DataFrame, batch_id: int) -> None:
        for apply, words in REFUSED:
            with pytest.raises(InvalidRequestError, match=words):
                apply(rules, rows)
        for operator, words in (
            (groups, "takes no broadcast rows"),
            (twice, "already has a broadcast function"),
        ):
            for frame in (5, rows):
                with pytest.raises(InvalidRequestError, match=words):
                    operator.apply(rows, broadcast=cast("DataFrame", frame))
        # Refused calls do not count as uses of the operators.
        rules.apply(rows, broadcast=rules_of(rows.sparkSession, batch_id))
        twice.apply(rows)
        groups.apply(rows)

    job.run(stateful_query(process, rules, twice, groups))
    assert job.checkpoint_ids() == [1]


@pytest.mark.parametrize("broadcast", [5, "rules"])
def test_broadcast_must_be_a_function(job: Job, broadcast: object) -> None:
    with pytest.raises(InvalidRequestError, match="must be a function of a session"):
        job.operator(Rules(), broadcast=broadcast)
