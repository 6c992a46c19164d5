"""`spark.read.format("holdfast")`: states of checkpoints and savepoints as DataFrames."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from contracts.checkpoints import Checkpoint
from contracts.elements import (
    VALUES,
    Circle,
    Plain,
    Point,
    Square,
    broadcast_state,
    list_state,
    union_state,
)
from jobs.job import Job
from jobs.operators import AllOperatorStates
from jobs.processor_jobs import CallbackProcessor, processor_job
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from servers.s3 import S3Bucket, settings_of

import holdfast
from holdfast import scan_state, take_savepoint
from holdfast.backends import OperatorStateBackend, Pickled
from holdfast.errors import InvalidRequestError
from holdfast.locations import use_s3
from holdfast.locations.adapters import unregister_file_system
from holdfast.spark.data_source import StateReader, StateView

SECRET = "the-secret-of-a-test"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(f"file://{tmp_path}")


def read(spark: SparkSession, pointer: str, **options: str) -> DataFrame:
    return spark.read.format("holdfast").options(**options).load(pointer)


@pytest.mark.exhaustive
def test_elements_of_every_type_come_as_spark_has_them(
    spark: SparkSession, checkpoint: Checkpoint
) -> None:
    row = pa.struct([(kind, element_type) for kind, (element_type, _) in VALUES.items()])
    rows = [{kind: values[0] for kind, (_, values) in VALUES.items()}, dict.fromkeys(VALUES)]
    checkpoint.add(
        "op", lambda backend, _: list_state(backend, "s", row).add_all(rows), parallelism=2
    )
    pointer = checkpoint.complete()
    frame = read(spark, pointer, operator="op", state="s")
    assert frame.rdd.getNumPartitions() == 2
    assert frame.orderBy("subtask").toArrow().to_pylist() == [
        {"subtask": subtask, "value": element}
        for subtask in range(2)
        for element in pa.array(rows, row).to_pylist()
    ]


@pytest.mark.exhaustive
def test_the_states_of_a_query_and_its_subtasks_are_read_from_a_savepoint(
    spark: SparkSession, job: Job
) -> None:
    job.feed(files=2, rows=10)
    job.run(job.operator(AllOperatorStates(), schema=AllOperatorStates.schema))
    pointer = take_savepoint(job.spark_checkpoint, f"file://{job.directory}/savepoints")
    overview = read(spark, pointer).toArrow()
    assert overview.equals(holdfast.states(pointer))
    assert overview["state"].to_pylist() == ["list", "union", "rules", None]
    raw = read(spark, pointer, operator="operator", raw="operator").toArrow()
    expected = holdfast.read_state(pointer, "operator", raw="operator")
    assert raw.schema.equals(expected.schema)
    assert sorted(map(str, raw.to_pylist())) == sorted(map(str, expected.to_pylist()))
    subtasks = read(spark, pointer, view="metadata").collect()
    assert {(row.checkpoint, row.batch, row.subtask) for row in subtasks} == {(2, 1, 0), (2, 1, 1)}
    assert sum(row.rows_in for row in subtasks) == 10
    spark.sql(f"CREATE TEMP VIEW held USING holdfast OPTIONS (path '{pointer}', state 'list')")
    (count,) = spark.sql("SELECT count(*), sum(value) FROM held").collect()
    assert tuple(count) == (20, sum(range(20)))


@pytest.mark.exhaustive
def test_objects_unions_and_pickles_need_no_classes(
    spark: SparkSession, checkpoint: Checkpoint
) -> None:
    def fill(backend: OperatorStateBackend, subtask: int) -> None:
        broadcast_state(
            backend, "shapes", (str, Circle | Square), {"a": Square(2), "b": Circle(1.0)}
        )
        union_state(backend, "points", Point).add(Point(2**63 - 1))
        list_state(backend, "pickles", Pickled()).add(Plain(subtask))

    checkpoint.add("op", fill, parallelism=2)
    pointer = checkpoint.complete()
    shapes = scan_state(spark, pointer, "op", "shapes").orderBy("key")
    assert [row.value for row in shapes.collect()] == [
        '{"type":"Square","side":2,"color":"blue"}',
        '{"type":"Circle","radius":1.0}',
    ]
    points = scan_state(spark, pointer, "op", "points")
    assert {int(row.x) for row in points.select("value.x").collect()} == {2**63 - 1}
    pickles = scan_state(spark, pointer, "op", "pickles").collect()
    assert {pickle.loads(row.value) for row in pickles} == {Plain(0), Plain(1)}


@pytest.mark.exhaustive
def test_an_empty_state_is_a_frame_without_rows(
    spark: SparkSession, checkpoint: Checkpoint
) -> None:
    checkpoint.add("op", lambda backend, _: list_state(backend, "s", str), parallelism=2)
    frame = read(spark, checkpoint.complete(), operator="op")
    assert (frame.schema.simpleString(), frame.count()) == ("struct<subtask:int,value:string>", 0)


def test_a_wrong_name_is_answered_with_the_right_ones(
    spark: SparkSession, checkpoint: Checkpoint
) -> None:
    checkpoint.add("op", lambda backend, _: (list_state(backend, "s"), list_state(backend, "t")))
    pointer = checkpoint.complete()
    with pytest.raises(AnalysisException, match=r"\['op'\]"):
        read(spark, pointer, operator="other")
    with pytest.raises(AnalysisException, match=r"\['s', 't'\]"):
        scan_state(spark, pointer, "op", "u")


def test_large_states_are_read_in_parts(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = [pa.array(range(i * 200_000, (i + 1) * 200_000)) for i in range(5)]
    checkpoint.add(
        "op",
        lambda backend, _: list_state(backend).add_all(pa.chunked_array(chunks)),
        parallelism=2,
    )
    options = {"path": checkpoint.complete(), "operator": "op"}
    monkeypatch.setattr("holdfast.backends.inspection.operator_parts.PARALLEL_BYTES", 4 << 20)
    view = StateView.of(options)
    reader = StateReader(view, view.spark_schema)
    partitions = reader.partitions()
    assert len(partitions) == 4
    table = pa.Table.from_batches(
        [
            batch
            for partition in partitions
            for batch in pickle.loads(pickle.dumps(reader)).read(
                pickle.loads(pickle.dumps(partition))
            )
        ]
    )
    assert table.equals(holdfast.read_state(options["path"]))


@pytest.mark.exhaustive
def test_a_key_is_read_without_the_rest(spark: SparkSession, tmp_path: Path) -> None:
    def keep(_: Any, state: Any, key: Any, rows: Any) -> None:
        state.update((len(key[0] or ""),))

    processor = CallbackProcessor(lambda handle: handle.getValueState("n", "n int"), keep)
    job = processor_job(f"file://{tmp_path}", processor, parallelism=2)
    job.run([{"k": key, "v": 1} for key in ("a", "bb", "ccc", None)])
    pointer = f"file://{max((tmp_path / 'job').glob('chk-*'))}"
    for key in ("bb", None):
        (row,) = scan_state(spark, pointer, state="n", key={"k": key}).collect()
        assert (row.k, row.value.n) == (key, len(key or ""))
    view = StateView.of({"path": pointer, "state": "n", "key": '{"k": "bb"}'})
    assert len(StateReader(view, view.spark_schema).partitions()) == 1  # of two subtasks


REFUSED: list[tuple[dict[str, str], str]] = [
    ({}, r"load\(...\)"),
    ({"path": "file:///tmp", "operater": "op"}, "did you mean 'operator'"),
    ({"path": "file:///tmp", "settings": "[1]"}, "JSON object"),
    ({"path": "file:///tmp", "operator": "op", "key": "ann"}, "option key must be a JSON object"),
    ({"path": "file:///tmp", "view": "states", "key": '{"user": "ann"}'}, "leave operator"),
    (
        {"path": "file:///tmp", "spark.holdfast.s3.endpont": "http://store"},
        "did you mean 'spark.holdfast.s3.endpoint'",
    ),
    ({"path": "file:///tmp", "view": "rows"}, "states, elements, metadata"),
    ({"path": "file:///tmp", "view": "states", "operator": "op"}, "leave operator"),
]


@pytest.mark.parametrize(("options", "why"), REFUSED)
def test_options_that_can_not_be_used_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        StateView.of(options)


def test_columns_are_those_of_the_state(spark: SparkSession, checkpoint: Checkpoint) -> None:
    checkpoint.add("op", lambda backend, _: list_state(backend).add(1))
    options = {"path": checkpoint.complete(), "operator": "op"}
    other = spark.createDataFrame([], "value string").schema
    with pytest.raises(InvalidRequestError, match="cast afterwards"):
        StateReader(StateView.of(options), other)


@pytest.fixture
def _as_it_was() -> Iterator[None]:
    yield
    for scheme in ("s3", "s3a"):
        unregister_file_system(scheme)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("_as_it_was")
@pytest.mark.parametrize("by", ["options", "the session"])
def test_a_bucket_is_reached_by_the_settings_and_no_plan_shows_them(
    spark: SparkSession, moto_bucket: S3Bucket, capsys: pytest.CaptureFixture[str], by: str
) -> None:
    use_s3(settings_of(moto_bucket.server), moto_bucket.name)
    checkpoint = Checkpoint(f"s3://{moto_bucket.name}/checkpoints")
    checkpoint.add("op", lambda backend, _: list_state(backend).add_all(range(10)), parallelism=2)
    pointer = checkpoint.complete()
    settings = {
        "spark.hadoop.fs.s3a.endpoint": moto_bucket.server.endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": moto_bucket.server.region,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": "some-name",
        "spark.hadoop.fs.s3a.secret.key": SECRET,
    }
    session = spark.newSession()
    if by == "options":
        frame = read(session, pointer, operator="op", **settings)
    else:
        for key, value in settings.items():
            session.conf.set(key, value)
        frame = scan_state(session, pointer, "op")
    assert sorted(row.value for row in frame.collect()) == sorted([*range(10)] * 2)
    frame.explain("extended")
    frame.explain("formatted")
    assert SECRET not in capsys.readouterr().out
