"""`spark.read.format("holdfast")`: states of checkpoints and savepoints as DataFrames, with the types of Spark."""

import datetime as dt
import pickle
from decimal import Decimal
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
from contracts.files import files_below
from jobs.job import Job
from jobs.operators import AllOperatorStates
from jobs.processor_jobs import run_callbacks
from jobs.pyspark_versions import requires_pyspark
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from servers.s3 import S3Bucket, settings_of

import holdfast
from holdfast import scan_state, take_savepoint
from holdfast.backends import OperatorStateBackend, Pickled
from holdfast.errors import CheckpointNotFoundError, InvalidRequestError
from holdfast.locations import use_s3
from holdfast.locations.adapters import file_system_for
from holdfast.spark.compat import IS_PYSPARK_4, arrow_schema_of, read_arrow
from holdfast.spark.data_source import StateReader, StateView, for_spark, spark_schema_of

SECRET = "the-secret-of-a-test"

PYTHON_SOURCES = requires_pyspark("4.0", "data sources in Python")
TIME = requires_pyspark("4.1", "type for times")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(f"file://{tmp_path}")


def read(spark: SparkSession, pointer: str, **options: str) -> DataFrame:
    return spark.read.format("holdfast").options(**options).load(pointer)


@PYTHON_SOURCES
@pytest.mark.exhaustive
def test_elements_of_every_type_have_the_types_of_spark(
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
    assert read_arrow(frame.orderBy("subtask")).to_pylist() == [
        {"subtask": subtask, "value": element}
        for subtask in range(2)
        for element in pa.array(rows, row).to_pylist()
    ]


@PYTHON_SOURCES
@pytest.mark.exhaustive
def test_states_and_subtasks_are_read_from_a_savepoint(spark: SparkSession, job: Job) -> None:
    job.feed(files=2, rows=10)
    job.run(job.operator(AllOperatorStates(), schema=AllOperatorStates.schema))
    pointer = take_savepoint(job.spark_checkpoint, f"file://{job.directory}/savepoints")
    overview = read_arrow(read(spark, pointer))
    assert overview.equals(holdfast.states(pointer))
    assert overview["state"].to_pylist() == ["list", "union", "rules", None]
    raw = read_arrow(read(spark, pointer, operator="operator", raw="operator"))
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
def test_empty_state_is_a_frame_without_rows(spark: SparkSession, checkpoint: Checkpoint) -> None:
    checkpoint.add("op", lambda backend, _: list_state(backend, "s", str), parallelism=2)
    frame = scan_state(spark, checkpoint.complete(), "op")
    assert (frame.schema.simpleString(), frame.count()) == ("struct<subtask:int,value:string>", 0)


def test_wrong_name_is_refused_with_the_right_ones(
    spark: SparkSession, checkpoint: Checkpoint
) -> None:
    checkpoint.add("op", lambda backend, _: (list_state(backend, "s"), list_state(backend, "t")))
    pointer = checkpoint.complete()
    with pytest.raises(
        AnalysisException if IS_PYSPARK_4 else InvalidRequestError, match=r"\['s', 't'\]"
    ):
        scan_state(spark, pointer, "op", "u")
    if IS_PYSPARK_4:
        with pytest.raises(AnalysisException, match=r"\['op'\]"):
            read(spark, pointer, operator="other")


def test_scanned_rows_equal_those_without_spark(
    spark: SparkSession, checkpoint: Checkpoint
) -> None:
    checkpoint.add("op", lambda backend, _: list_state(backend).add_all(range(1000)), parallelism=3)
    pointer = checkpoint.complete()
    frame = scan_state(spark, pointer, "op")
    assert frame.rdd.getNumPartitions() == 3
    rows = read_arrow(frame).sort_by([("subtask", "ascending"), ("value", "ascending")])
    expected = holdfast.read_state(pointer)
    assert rows.equals(expected.sort_by([("subtask", "ascending"), ("value", "ascending")]))
    states = read_arrow(scan_state(spark, pointer))
    assert states.equals(holdfast.states(pointer))


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
    monkeypatch.setattr("holdfast.backends.inspection.state_parts.PARALLEL_BYTES", 4 << 20)
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


def test_planned_query_and_its_tasks_lease_the_checkpoint(checkpoint: Checkpoint) -> None:
    checkpoint.add("op", lambda backend, _: list_state(backend).add(1))
    pointer = checkpoint.complete()
    view = StateView.of({"path": pointer, "operator": "op"})
    reader = StateReader(view, view.spark_schema)

    def leases() -> int:
        job, _, number = pointer.rpartition("/chk-")
        return sum(f"/_lease-{number}-" in file for file in files_below(f"{job}/_epoch"))

    (partition,) = reader.partitions()
    assert leases() == 1
    rows = reader.read(partition)
    next(rows)
    assert leases() == 2
    assert list(rows) == []
    assert leases() == 1
    file_system_for(pointer).delete([f"{pointer}/_metadata"])
    with pytest.raises(CheckpointNotFoundError, match="HF-DELETED"):
        list(reader.read(partition))


@pytest.mark.exhaustive
def test_only_the_subtask_of_a_key_is_read(spark: SparkSession, tmp_path: Path) -> None:
    def keep(_: Any, state: Any, key: Any, rows: Any) -> None:
        state.update((len(key[0] or ""),))

    run_callbacks(
        f"file://{tmp_path}",
        lambda handle: handle.getValueState("n", "n int"),
        keep,
        batch=[{"k": key, "v": 1} for key in ("a", "bb", "ccc", None)],
        parallelism=2,
    )
    pointer = f"file://{max((tmp_path / 'job').glob('chk-*'))}"
    for key in ("bb", None):
        (row,) = scan_state(spark, pointer, state="n", key={"k": key}).collect()
        assert (row.k, row.value.n) == (key, len(key or ""))
    view = StateView.of({"path": pointer, "state": "n", "key": '{"k": "bb"}'})
    assert len(StateReader(view, view.spark_schema).partitions()) == 1  # of two subtasks


REFUSED: list[tuple[dict[str, str], str]] = [
    ({}, r"load\(...\)"),
    ({"path": "file:///tmp", "operater": "op"}, "did you mean 'operator'"),
    ({"path": "file:///tmp", "bananas": "op"}, "no option 'bananas'; options are .*operator"),
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


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        StateView.of(options)


def test_schema_of_another_type_is_refused(spark: SparkSession, checkpoint: Checkpoint) -> None:
    checkpoint.add("op", lambda backend, _: list_state(backend).add(1))
    options = {"path": checkpoint.complete(), "operator": "op"}
    other = spark.createDataFrame([], "value string").schema
    with pytest.raises(InvalidRequestError, match="cast afterwards"):
        StateReader(StateView.of(options), other)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("_unregister_s3")
@pytest.mark.parametrize("by", [pytest.param("options", marks=PYTHON_SOURCES), "the session"])
def test_bucket_settings_are_used_and_not_in_the_plan(
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


TYPES: dict[str, tuple[pa.DataType, list[Any], str]] = {
    "uint8": (pa.uint8(), [255, None], "smallint"),
    "uint16": (pa.uint16(), [2**16 - 1, None], "int"),
    "uint32": (pa.uint32(), [2**32 - 1, None], "bigint"),
    "uint64": (pa.uint64(), [2**64 - 1, None], "decimal(20,0)"),
    "halffloat": (pa.float16(), [1.5, None], "float"),
    "time in s": (pa.time32("s"), [dt.time(1, 2, 3), None], "time(6)"),
    "time in ns": (pa.time64("ns"), [dt.time(1, 2, 3, 4), None], "time(6)"),
    "duration": (pa.duration("ms"), [dt.timedelta(seconds=1.5), None], "interval day to second"),
    "fixed bytes": (pa.binary(2), [b"ab", None], "binary"),
    "large bytes": (pa.large_binary(), [b"ab", None], "binary"),
    "bytes view": (pa.binary_view(), [b"ab", None], "binary"),
    "text view": (pa.string_view(), ["ab", None], "string"),
    "date in ms": (pa.date64(), [dt.date(2020, 1, 1), None], "date"),
    "large list": (pa.large_list(pa.uint8()), [[1], None, [], [2, None]], "array<smallint>"),
    "list of two": (pa.list_(pa.int8(), 2), [[1, 2], [3, 4]], "array<tinyint>"),
    "list of categories": (
        pa.list_(pa.dictionary(pa.int32(), pa.string())),
        [["a", "b"], None, ["a"]],
        "array<string>",
    ),
    "map": (
        pa.map_(pa.large_string(), pa.struct([("a", pa.uint64())])),
        [[("a", {"a": 1})], None, [], [("b", None)]],
        "map<string,struct<a:decimal(20,0)>>",
    ),
    "decimal of 256 bits": (pa.decimal256(38, 0), [1, None], "decimal(38,0)"),
    "time without a zone": (
        pa.timestamp("us"),
        [0, None],
        "timestamp_ntz",
    ),
    "nothing": (pa.struct([("a", pa.null())]), [{"a": None}, None], "struct<a:void>"),
    "struct of nothing": (pa.struct([]), [{}, None], "struct<>"),
}
if hasattr(pa, "decimal32"):
    TYPES["small decimal"] = (pa.decimal32(4, 2), [Decimal("1.20"), None], "decimal(4,2)")
if hasattr(pa, "json_"):
    TYPES["text that is JSON"] = (pa.json_(), ["{}", None], "string")
for _kind, (_type, _values) in VALUES.items():
    TYPES[_kind] = (_type, [*_values, None], "")


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=TIME if "time64" in str(type) or "time32" in str(type) else ())
        for kind, (type, *_) in TYPES.items()
    ],
)
@pytest.mark.parametrize("sliced", ["whole", "sliced"])
def test_every_type_is_converted_for_spark(kind: str, sliced: str) -> None:
    element_type, values, spark_type = TYPES[kind]
    array = pa.array(values, element_type)
    batch = pa.record_batch({"value": pa.concat_arrays([array, array])})
    batch = batch.slice(len(values) - 1, len(values)) if sliced == "sliced" else batch
    schema = spark_schema_of(batch.schema)
    if spark_type:
        assert schema.simpleString() == f"struct<value:{spark_type}>"
    converted = for_spark(batch, schema)
    converted.validate(full=True)
    assert converted.schema.equals(arrow_schema_of(schema))
    assert converted.to_pylist() == batch.to_pylist()


@pytest.mark.parametrize(
    "type",
    [
        pa.decimal256(40, 0),
        pa.decimal128(5, -2),
        pa.month_day_nano_interval(),
        pa.list_(pa.decimal256(40, 0)),
        pa.struct([pa.field("a", pa.int8()), pa.field("a", pa.int8())]),
    ],
    ids=str,
)
def test_unsupported_types_are_refused_by_name(type: pa.DataType) -> None:
    with pytest.raises(InvalidRequestError, match=r"value.*Spark does not support"):
        spark_schema_of(pa.schema([("value", type)]))


def test_nanoseconds_are_not_truncated() -> None:
    for value in (1000, 1001):
        batch = pa.record_batch({"value": pa.array([value], pa.timestamp("ns", "UTC"))})
        if value == 1000:
            assert for_spark(batch, spark_schema_of(batch.schema)).num_rows == 1
        else:
            with pytest.raises(InvalidRequestError, match="don't fit Spark's type"):
                for_spark(batch, spark_schema_of(batch.schema))
