"""Rows that are routed to subtasks by key."""

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs.job import Job
from jobs.operators import AllOperatorStates, Groups, RawKeyedCounts, SubtaskReporter
from jobs.pyspark_versions import VERSION
from jobs.session import jvm_classes, session_with
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from holdfast import stateful_query
from holdfast.backends.keys import MAX_PARALLELISM, key_hash
from holdfast.errors import InvalidRequestError
from holdfast.spark.operators import Combination, CombinedRouting, Operator, Routing
from holdfast.spark.operators.partitions import partition_numbers
from holdfast.spark.operators.routing import subtask_of_content
from holdfast.spark.operators.task_homes import TaskHomes
from holdfast.spark.sessions import column_named

# Nulls, a few repeated keys, and one that is new in each row.
ROWS = "id", "nullif(id % 7, 3) as k", "if(id % 5 = 0, null, name) as `a name`"
SCHEMA = "id long, k long, `a name` string"


@pytest.fixture(scope="module", autouse=True)
def _cached_rows(spark: SparkSession) -> Iterator[None]:
    """Drop the rows that Spark caches for preferred executors."""
    yield
    spark.catalog.clearCache()


@pytest.mark.exhaustive
@pytest.mark.parametrize("key", [["k"], ["k", "a name"]], ids=["one column", "two columns"])
def test_rows_are_routed_by_the_documented_formula(job: Job, key: list[str]) -> None:
    seen: list[Row] = []
    columns = ", ".join(f"`{column}`" for column in key)

    def run(parallelism: int) -> None:
        def sink(rows: DataFrame, _batch_id: int) -> None:
            group = f"pmod(hash({columns}), 128)"
            formula = f"cast({group} * {parallelism} div 128 as int) as formula"
            seen.extend(rows.selectExpr("*", f"{group} as key_group", formula).collect())

        operator = job.operator(
            SubtaskReporter(),
            key=key,
            parallelism=parallelism,
            sink=sink,
            schema=SCHEMA + SubtaskReporter.added,
        )
        job.feed(files=2, rows=40)
        job.run(lambda batch, batch_id: operator(batch.selectExpr(*ROWS), batch_id))

    for parallelism in (3, 3, 5):  # two batches each, with a restart in between
        run(parallelism)
    assert sorted(row.id for row in seen) == job.ids_fed
    assert all(row.subtask == row.formula for row in seen)
    assert all(row.first_group <= row.key_group <= row.last_group for row in seen)
    subtasks: dict[object, set[int]] = {}
    for row in seen:
        if row.parallelism == 3:
            subtasks.setdefault(tuple(row[column] for column in key), set()).add(row.subtask)
    assert {len(places) for places in subtasks.values()} == {1}
    stored = job.latest().metadata.operators["operator"]
    assert (stored.key, stored.key_hash) == (tuple(key), "spark-murmur3-42")


def test_key_is_not_a_regular_expression_in_any_session(spark: SparkSession, job: Job) -> None:
    name = "spark.sql.parser.quotedRegexColumnNames"
    with session_with(spark, {name: "true"}):
        seen: list[Row] = []
        operator = job.operator(
            SubtaskReporter(),
            key="a|id",
            sink=lambda rows, _batch_id: seen.extend(rows.collect()),
            schema="id long, `a|id` string" + SubtaskReporter.added,
        )
        job.feed(files=1, rows=20)
        one_key = F.lit("one").alias("a|id")
        job.run(lambda batch, batch_id: operator(batch.select("id", one_key), batch_id))
    assert len(seen) == 20
    assert len({row.subtask for row in seen}) == 1


@pytest.mark.exhaustive
def test_raw_keyed_state_follows_its_keys(job: Job) -> None:
    seen: dict[str, tuple[int, int]] = {}

    def sink(rows: DataFrame, _batch_id: int) -> None:
        collected = rows.collect()
        seen.clear()
        seen.update({row.name: (row["count"], row.subtask) for row in collected})
        assert len(seen) == len(collected)

    def count_names(parallelism: int) -> Callable[[DataFrame, int], None]:
        operator = job.operator(
            RawKeyedCounts(),
            key="name",
            parallelism=parallelism,
            sink=sink,
            schema=RawKeyedCounts.schema,
        )
        named = "concat('name ', id % 9) as name", "pmod(hash(name), 128) as key_group"

        def function(batch: DataFrame, batch_id: int) -> None:
            operator(batch.selectExpr(named[0]).selectExpr("*", named[1]), batch_id)

        return function

    used: list[set[int]] = []
    for parallelism in (2, 4, 1, 3):
        job.feed(files=1, rows=45)
        job.run(count_names(parallelism))
        used.append({subtask for _, subtask in seen.values()})
    assert seen.keys() == {f"name {i}" for i in range(9)}
    assert {count for count, _ in seen.values()} == {4 * 45 // 9}
    assert used[2] == {0}
    assert len(used[1]) > 1


@pytest.mark.exhaustive
def test_rows_routed_by_another_key_are_refused(job: Job) -> None:
    job.feed(files=1, rows=20)
    job.run(job.operator(Groups(7), key="id"))
    job.feed(files=1, rows=20)
    other = job.operator(Groups(7), key="name")
    job.check_refused(other, r"partitions rows by name .* partitioned by id ")
    job.run(job.operator(Groups(7), key="id"))
    job.check_every_row_is_there_once()


@pytest.mark.exhaustive
def test_key_of_another_type_is_refused(job: Job) -> None:
    def run(kind: str) -> None:
        def rows(batch: DataFrame) -> DataFrame:
            return batch.withColumn("k", F.col("id").cast(kind))

        keyed = job.operator(Groups(7), key="k", schema=f"{Job.schema}, k {kind}")
        job.run(lambda batch, batch_id: keyed(rows(batch), batch_id))

    job.feed(files=1, rows=20)
    run("bigint")
    job.feed(files=1, rows=20)
    with pytest.raises(StreamingQueryException, match="changed its type from bigint to int"):
        run("int")
    run("bigint")
    assert job.checkpoint_ids() == [2]


@pytest.mark.exhaustive
def test_rescaling_of_raw_operator_state_by_key_is_refused(job: Job) -> None:
    options = {"schema": AllOperatorStates.schema, "key": "id"}
    job.feed(files=1, rows=20)
    job.run(job.operator(AllOperatorStates(), **options))
    job.feed(files=1, rows=20)
    other = job.operator(AllOperatorStates(), **options, parallelism=3)
    job.check_refused(other, "raw operator state")


BAD_KEYS = {
    "missing": r"lack columns \['missing'\] of its key; they have",
    "map": r"column 'map' of the key of operator 'map' has type map<bigint,string>",
    "nested": r"column 'nested' .* has type struct<",
    "K": r"lack columns \['K'\]",
    "collated": r"has type string collate UNICODE_CI: strings that are equal",
    "point": r"has type struct<p:geometry\(0\)>, which Spark can't hash",
}

LATER_TYPES = {"collated", "point"}
"""Columns of types that Spark has since 4.0 and 4.2."""


def is_known(rows: DataFrame, expression: str) -> bool:
    """Return whether this version of Spark understands an expression."""
    try:
        rows.selectExpr(expression)
    except AnalysisException:
        return False
    return True


def test_unusable_key_columns_are_refused_by_name(job: Job) -> None:
    job.feed(files=1, rows=5)
    operators = {column: job.part(Groups(1), column, key=["k", column]) for column in BAD_KEYS}
    columns = (
        "id as k",
        "map(id, name) as map",
        "named_struct('m', map(id, name)) as nested",
        "name collate UNICODE_CI as collated",
        "named_struct('p', ST_GeomFromWKB(X'0101000000000000000000F03F0000000000000040')) as point",
    )

    def process(batch: DataFrame, _batch_id: int) -> None:
        rows = batch.selectExpr(*(column for column in columns if is_known(batch, column)))
        for column in BAD_KEYS.keys() - (LATER_TYPES - {*rows.columns}):
            with pytest.raises(InvalidRequestError, match=BAD_KEYS[column]):
                operators[column].apply(rows)
        raise OSError("as planned")

    with pytest.raises(StreamingQueryException, match="as planned"):
        job.run(stateful_query(process, *operators.values()))
    assert job.checkpoint_ids() == []


@given(st.integers(1, 3000) | st.just(MAX_PARALLELISM))
def test_number_of_each_partition_is_hashed_to_it(parallelism: int) -> None:
    hashes = key_hash([pa.array(partition_numbers(parallelism), pa.int32())]).to_numpy()
    assert (hashes % parallelism).tolist() == [*range(parallelism)]


def test_spark_hashes_each_number_to_its_partition(spark: SparkSession) -> None:
    rows = [
        (parallelism, partition, number)
        for parallelism in (*range(1, 50), 200, 777, 2000)
        for partition, number in enumerate(partition_numbers(parallelism))
    ]
    frame = spark.createDataFrame(rows, "n int, partition int, number int")
    assert frame.where("pmod(hash(number), n) <> partition").collect() == []


@pytest.mark.parametrize("adaptive", ["true", pytest.param("false", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("parallelism", [1, 2, 7, 40])
@pytest.mark.parametrize("key", [(), ("k",)], ids=["evenly", "by key"])
@pytest.mark.parametrize("executors", [0, 2], ids=["anywhere", "on preferred executors"])
def test_rows_and_marks_arrive_in_their_partitions(
    spark: SparkSession, parallelism: int, adaptive: str, key: tuple[str, ...], executors: int
) -> None:
    rows = spark.range(0, 500, 1, 3).selectExpr("id", "id % 100 as k")
    operator = Operator(function=Groups(1), uid="o", parallelism=parallelism, key=key)
    routing = Routing.of(rows, operator, parallelism, 128)
    routed = routing.repartition(rows, 0, parallelism, homes_on(executors))
    assert routed.columns[:-1] == rows.columns
    mark = F.col(routed.columns[-1])
    arrived = routed.select(
        F.spark_partition_id().alias("partition"), "id", "k", mark.alias("mark")
    )
    with session_with(spark, {"spark.sql.adaptive.enabled": adaptive}):
        seen = arrived.collect()
    assert all(row.mark % parallelism == row.partition for row in seen)
    data = [row for row in seen if row.mark >= 0]
    assert sorted(row.id for row in data) == [*range(500)]
    marks = sorted(row.partition for row in seen if row.mark < 0)
    assert marks == [*range(parallelism)]
    if key:
        hashes = key_hash([pa.array([row.k for row in data], pa.int64())]).to_numpy()
        assert [row.mark for row in data] == (hashes % 128 * parallelism // 128).tolist()


def test_subtask_by_content_does_not_depend_on_the_order_of_rows(spark: SparkSession) -> None:
    rows = spark.range(0, 300, 1, 3).selectExpr("id", "'v' || id % 7 as v", "map(id, 1) as m")
    places = [
        {
            row.id: row.subtask
            for row in ordered.select("id", subtask_of_content(rows, 4).alias("subtask")).collect()
        }
        for ordered in (rows, rows.orderBy(F.desc("id")), rows.repartition(5, "v"))
    ]
    assert places[0] == places[1] == places[2]
    sizes = Counter(places[0].values())
    assert sorted(sizes) == [0, 1, 2, 3]
    assert max(sizes.values()) < 120


@pytest.mark.skipif(VERSION >= (4, 1), reason="Spark 4.1 notices another order by checksums")
def test_rows_without_a_key_keep_their_subtasks_in_another_order(spark: SparkSession) -> None:
    rows = spark.range(0, 300, 1, 3).withColumn("m", F.expr("map(id, 1)"))
    operator = Operator(function=Groups(1), uid="o", parallelism=4)
    routing = Routing.of(rows, operator, 4, 128)
    places = [
        {row.id: row[-1] for row in routing.repartition(ordered, 0, 4).collect() if row[-1] >= 0}
        for ordered in (rows, rows.orderBy(F.desc("id")))
    ]
    assert places[0] == places[1]


def test_rows_without_hashable_columns_go_to_one_subtask(spark: SparkSession) -> None:
    rows = spark.range(20).selectExpr("map(id, 1) as m")
    assert rows.select(subtask_of_content(rows, 4)).distinct().count() == 1


def homes_on(executors: int) -> TaskHomes:
    """Return the preferred executors of tasks, among that many."""
    homes = TaskHomes(uuid.uuid4().hex)
    homes.update(frozenset(map(str, range(executors))))
    return homes


def test_tasks_get_other_executors_if_these_have_changed(spark: SparkSession) -> None:
    """Spark computes the cached rows, where the tasks run from then on, once for each set of executors."""
    rows = spark.range(100).selectExpr("id", "id % 10 as k")
    operator = Operator(function=Groups(1), uid="o", parallelism=2, key=("k",))
    routing = Routing.of(rows, operator, 2, 128)
    homes = homes_on(2)

    def move() -> set[int]:
        assert routing.repartition(rows, 0, 2, homes).count() == 102
        return {*context.getPersistentRDDs().keys()}

    spark_of_java = jvm_classes(spark).org.apache.spark
    context = spark_of_java.api.java.JavaSparkContext(spark_of_java.SparkContext.getOrCreate())
    before = {*context.getPersistentRDDs().keys()}
    first = move() - before
    assert len(first) == 1
    assert move() - before == first
    homes.update(frozenset({"0", "2"}))
    second = move() - before
    assert len(second) == 1
    assert second != first
    homes.update(frozenset({"0"}))
    assert move() - before == second  # the only executor needs no preference
    homes.update(frozenset({"0", "2"}))
    restarted = TaskHomes(homes.query_id)
    restarted.update(frozenset({"0", "2"}))
    routing.repartition(rows, 0, 2, restarted).count()
    assert len({*context.getPersistentRDDs().keys()} - before) == 1


EVERY_TYPE = (
    "id % 40 as n",
    "if(id % 5 = 0, null, 'name ' || id % 20) as `a name`",
    "if(id % 4 = 0, -0.0d, cast(id % 4 as double) / 0.3) as x",
    "cast(id % 2 as float) as f",
    "cast(id % 8 as decimal(30, 5)) as d",
    "timestamp_micros(id % 10) as t",
    "cast(cast(id % 10 as string) as binary) as b",
    "named_struct('s', cast(id % 2 as smallint), 'o', id % 2 = 0) as pair",
)


@pytest.mark.parametrize(
    ("parallelism", "tasks", "adaptive", "executors"),
    [
        (1, 1, "false", 0),
        (2, 2, "true", 0),
        (7, 3, "false", 0),
        (40, 2, "true", 0),
        (7, 3, "false", 2),
        (40, 2, "true", 2),
    ],
)
def test_combined_rows_arrive_in_the_tasks_of_their_subtasks(
    spark: SparkSession, parallelism: int, tasks: int, adaptive: str, executors: int
) -> None:
    rows = spark.range(0, 1000, 1, 3).selectExpr("id", *EVERY_TYPE)
    key = tuple(rows.columns[1:])
    columns = {name: column_named(name) for name in rows.columns}
    groups = {name: columns[name] for name in key}
    combination = Combination(
        condition=None,
        columns=[*columns.values()],
        groups=groups,
        values={"id": F.sum("id"), "count": F.count("id")},
    )
    operator = Operator(function=Groups(1), uid="o", parallelism=parallelism, key=key)
    with session_with(spark, {"spark.sql.adaptive.enabled": adaptive}):
        routing = Routing.of(combination(rows), operator, parallelism, 128)
        combined = CombinedRouting.of(combination, routing, rows)
        assert combined is not None
        routed = combined.repartition(rows, tasks, homes_on(executors))
        mark = F.col(routed.columns[-1]).alias("mark")
        task = F.spark_partition_id().alias("task")
        expected = F.pmod(F.hash(*groups.values()), F.lit(128)).alias("key_group")
        seen = routed.select(task, mark, "id", "count", expected).collect()
    assert sum(row["count"] for row in seen if row.mark >= 0) == 1000
    assert sum(row["id"] for row in seen if row.mark >= 0) == sum(range(1000))
    data = [row for row in seen if row.mark >= 0]
    assert len(data) == 40
    assert all(row.mark == row.key_group * parallelism // 128 for row in data)
    marks = sorted(row.mark for row in seen if row.mark < 0)
    assert marks == [*range(-parallelism, 0)]
    # The rows of a subtask follow each other in one task.
    places = [(row.task, row.mark % parallelism) for row in seen]
    assert [place for place, _ in groupby(places)] == list(dict.fromkeys(places))
    assert len({*places}) == parallelism
    assert {place for place, _ in places} == {*range(tasks)}
