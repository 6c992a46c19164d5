"""Savepoints written from DataFrames: for new queries, and to repair state."""

import logging
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from contracts.checkpoints import Checkpoint
from contracts.elements import list_state
from contracts.keyed_tables import write_keyed
from contracts.written_keyed_states import (
    KEYED_CONTENT,
    KEYED_NAMES,
    keyed_checkpoint,
    keyed_content,
    restored_keyed,
)
from jobs.job import Job
from jobs.operators import AllOperatorStates, RowNumbers, SubtaskReporter
from jobs.session import session_with
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast import (
    NewOperator,
    StateRows,
    restore_savepoint,
    scan_state,
    take_savepoint,
    write_savepoint,
)
from holdfast.backends import ListStateDescriptor, StateTtlConfig, ValueStateDescriptor
from holdfast.backends.keys import KEY_HASH
from holdfast.errors import CheckpointCorruptedError, CheckpointNotFoundError, InvalidRequestError
from holdfast.spark.settings import Settings

PATH = "spark.holdfast.savepoint.path"


class LastBatch:
    """A sink that keeps the rows of the last batch, by subtask."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def __call__(self, rows: DataFrame, _batch_id: int) -> None:
        self.rows = sorted(rows.collect(), key=lambda row: row.subtask)


def run_all_states(job: Job, parallelism: int = 2, rows: int = 0) -> list[Row]:
    """Run a batch through an operator with all operator states, and return their contents before it."""
    seen = LastBatch()
    job.feed(files=1, rows=rows)
    job.run(
        job.operator(
            AllOperatorStates(), parallelism=parallelism, schema=AllOperatorStates.schema, sink=seen
        )
    )
    return seen.rows


@pytest.mark.exhaustive
@pytest.mark.parametrize("parallelism", [2, 3])
def test_new_query_starts_with_the_written_state(
    spark: SparkSession, job: Job, parallelism: int, caplog: pytest.LogCaptureFixture
) -> None:
    pointer = write_savepoint(
        f"file://{job.directory}/written",
        {
            ("operator", "list"): spark.range(10).select(F.col("id").alias("value")),
            ("operator", "union"): StateRows(pa.table({"value": [7, 8]}), union=True),
            ("operator", "rules"): pd.DataFrame({"key": ["limit"], "value": ["5"]}),
        },
        operators={"operator": NewOperator(parallelism=2, max_parallelism=6)},
    )
    job.settings[PATH] = pointer
    rows = run_all_states(job, parallelism, rows=3)
    assert [row.subtask for row in rows] == list(range(parallelism))
    assert sorted(element for row in rows for element in row.list) == list(range(10))
    assert {len(row.list) for row in rows} <= {3, 4, 5}
    assert all((sorted(row.union), row.rules) == ([7, 8], ["limit=5"]) for row in rows)
    stored = job.latest().metadata.operators["operator"]
    assert (stored.parallelism, stored.max_parallelism) == (parallelism, 6)

    # From now on the query uses its own checkpoints.
    with caplog.at_level(logging.INFO, "holdfast"):
        rows = run_all_states(job, parallelism, rows=0)
    assert sorted(element for row in rows for element in row.list) == sorted([*range(10), 0, 1, 2])
    assert [row.rules for row in rows] == [["limit=10"]] * parallelism
    assert f"ignores savepoint {pointer}" in caplog.text


@pytest.mark.exhaustive
def test_failed_first_batch_restarts_from_the_savepoint(spark: SparkSession, job: Job) -> None:
    job.settings[PATH] = write_savepoint(
        f"file://{job.directory}/written",
        {("operator", "rows"): spark.range(3).select(F.col("id").alias("value"))},
    )
    job.feed(files=1, rows=4)
    options: dict[str, Any] = {"parallelism": 1, "schema": "id long, nth long, subtask int"}

    with pytest.raises(StreamingQueryException, match="as planned"):
        job.run(job.operator(RowNumbers(), sink=job.write_and_fail_in(0), **options))
    seen = LastBatch()
    job.run(job.operator(RowNumbers(), sink=seen, **options))
    assert sorted(row.nth for row in seen.rows) == [3, 4, 5, 6]


def test_keyed_operator_starts_with_its_partitioning(spark: SparkSession, job: Job) -> None:
    rows = pa.table({"value": [5, 6]})
    target = f"file://{job.directory}/written"
    with pytest.raises(InvalidRequestError, match="the subtask of their keys"):
        write_savepoint(
            target, {("operator", "s"): rows}, operators={"operator": NewOperator(2, key="name")}
        )
    assert list((job.directory / "written").iterdir()) == []
    pointer = write_savepoint(
        target,
        {("operator", "batches"): StateRows(rows, ListStateDescriptor("batches", int), union=True)},
        operators={"operator": NewOperator(2, key="name")},
    )
    job.settings[PATH] = pointer
    job.feed(files=1, rows=3)
    schema = Job.schema + SubtaskReporter.added
    with pytest.raises(StreamingQueryException, match="partitions rows evenly"):
        job.run(job.operator(SubtaskReporter(), schema=schema))
    job.run(job.operator(SubtaskReporter(), schema=schema, key="name"))
    stored = job.latest().metadata.operators["operator"]
    assert (stored.key, stored.key_hash, bool(stored.key_types)) == (("name",), KEY_HASH, True)
    held = holdfast.read_state(job.latest().location.external_pointer, "operator", "batches")
    assert {5, 6} < set(held["value"].to_pylist())


@pytest.mark.exhaustive
def test_savepoint_of_other_operators_is_refused(job: Job) -> None:
    job.settings[PATH] = write_savepoint(
        f"file://{job.directory}/written", {("gone", "s"): pa.table({"value": [1]})}
    )
    job.feed(files=1, rows=3)
    with pytest.raises(StreamingQueryException, match=r"has operators \['gone'\]"):
        job.run(job.operator(RowNumbers(), schema="id long, nth long, subtask int"))
    job.settings["spark.holdfast.checkpoint.allow-non-restored-state"] = "true"
    job.run(job.operator(RowNumbers(), schema="id long, nth long, subtask int"))


@pytest.mark.exhaustive
def test_query_resumes_with_repaired_state(spark: SparkSession, job: Job, tmp_path: Path) -> None:
    run_all_states(job, rows=10)
    savepoint = take_savepoint(job.spark_checkpoint, f"file://{tmp_path}/savepoints")
    held = scan_state(spark, savepoint, "operator", "list")
    repaired = write_savepoint(
        f"file://{tmp_path}/repaired",
        {
            ("operator", "list"): held.where("value % 2 = 0").withColumn(
                "value", F.col("value") * 10
            ),
            ("operator", "rules"): spark.createDataFrame(
                [("limit", "7"), ("more", "1")], "key string, value string"
            ),
            ("operator", "added"): pa.table({"value": ["x"]}),
            ("operator", "union"): None,
        },
        base=savepoint,
    )
    before, after = holdfast.states(savepoint).to_pylist(), holdfast.states(repaired).to_pylist()
    assert [row["state"] for row in before] == ["list", "union", "rules", None]
    assert sorted(str(row["state"]) for row in after) == ["None", "added", "list", "rules"]
    assert holdfast.read_state(savepoint, "operator", "list")["value"].to_pylist() != []

    # The repaired savepoint does not need its base.
    fork = Job(spark, tmp_path / "fork")
    restored = restore_savepoint(repaired, fork.spark_checkpoint, checkpoint_dir=fork.checkpoints)
    fork.settings |= restored.settings
    job.feed(files=1, rows=5)
    seen = LastBatch()
    function = job.operator(AllOperatorStates(), schema=AllOperatorStates.schema, sink=seen)
    fork.start(function, job.stream(), availableNow=True).awaitTermination()
    assert [sorted(row.rules) for row in seen.rows] == [["limit=7", "more=1"]] * 2
    assert sorted(element for row in seen.rows for element in row.list) == [0, 20, 40, 60, 80]
    assert [row.union for row in seen.rows] == [[], []]
    assert sorted(int(element) for row in seen.rows for element in row.raw) == list(range(10))
    # Rows of the frame stayed with their subtask.
    placed = {
        row["value"]: row["subtask"]
        for row in holdfast.read_state(savepoint, "operator", "list").to_pylist()
    }
    assert all(placed[element // 10] == row.subtask for row in seen.rows for element in row.list)


@pytest.mark.exhaustive
def test_base_is_copied_with_its_other_states(job: Job, tmp_path: Path) -> None:
    run_all_states(job, rows=10)
    pointer = job.latest().location.external_pointer  # a checkpoint can be a base, too
    copy = write_savepoint(
        f"file://{tmp_path}/copy",
        {("new", "s"): pa.table({"value": [1]})},
        base=pointer,
        operators={"new": NewOperator()},
    )
    for name in ("list", "union", "rules"):
        assert holdfast.read_state(copy, "operator", name).equals(
            holdfast.read_state(pointer, "operator", name)
        )
    assert holdfast.read_state(copy, "operator", raw="operator").equals(
        holdfast.read_state(pointer, "operator", raw="operator")
    )
    assert holdfast.read_state(copy, "new").to_pylist() == [{"subtask": 0, "value": 1}]


def one_operator(directory: Path) -> Checkpoint:
    """Return a checkpoint with a list of an operator `operator`."""
    checkpoint = Checkpoint(f"file://{directory}/base")
    checkpoint.add("operator", lambda backend, _: list_state(backend, "list").add_all(range(9)))
    return checkpoint


def test_damaged_or_missing_base_is_refused(tmp_path: Path) -> None:
    location = Path(one_operator(tmp_path).complete().removeprefix("file://"))
    target = tmp_path / "copy"
    state = {("operator", "s"): pa.table({"value": [1]})}
    file = max(
        location.iterdir(), key=lambda path: path.stat().st_size * (path.name != "_metadata")
    )
    damaged = bytearray(file.read_bytes())
    damaged[0] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(CheckpointCorruptedError):
        write_savepoint(f"file://{target}", state, base=f"file://{location}")
    assert list(target.iterdir()) == []
    with pytest.raises(CheckpointNotFoundError):
        write_savepoint(f"file://{target}", state, base=f"file://{tmp_path}/none")


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    base = one_operator(tmp_path).complete()
    target = f"file://{tmp_path}/written"
    table = pa.table({"value": [1]})
    with pytest.raises(InvalidRequestError, match="are in the base already"):
        write_savepoint(target, {}, base=base, operators={"operator": NewOperator(3)})
    with pytest.raises(InvalidRequestError, match="can't be removed"):
        write_savepoint(target, {("operator", "none"): None}, base=base)
    with pytest.raises(InvalidRequestError, match=r"has \['operator'\]; did you mean 'operator'\?"):
        write_savepoint(target, {("operatro", "list"): table}, base=base)
    with pytest.raises(InvalidRequestError, match=r"'new' is not in the base, .* operators="):
        write_savepoint(target, {("new", "list"): None}, base=base)
    with pytest.raises(InvalidRequestError, match="type list"):
        write_savepoint(target, {("new", "s"): [1, 2]})
    with pytest.raises(InvalidRequestError, match="without a common Arrow type"):
        write_savepoint(target, {("new", "s"): pd.DataFrame({"value": [1, "a"]})})
    with pytest.raises(InvalidRequestError, match="needs states or a base"):
        write_savepoint(target, {})
    with pytest.raises(InvalidRequestError, match=r"savepoint\.dir"):
        write_savepoint(None, {("new", "s"): table})
    with pytest.raises(InvalidRequestError, match=r"names 'ne', .* did you mean 'new'\?"):
        write_savepoint(target, {("new", "s"): table}, operators={"ne": NewOperator(2)})
    with pytest.raises(InvalidRequestError, match=r"names 'else', .* leave it out"):
        write_savepoint(target, {("new", "s"): table}, operators={"else": NewOperator(2)})
    for key in ("new", "ab", ("new", "s", "t"), ("new", 1)):
        with pytest.raises(InvalidRequestError, match="must be a pair"):
            write_savepoint(target, {cast("tuple[str, str]", key): table})
    with pytest.raises(InvalidRequestError, match="parallelism"):
        write_savepoint(target, {("new", "s"): table}, operators={"new": NewOperator(0)})


def test_written_types_do_not_depend_on_session_settings(
    spark: SparkSession, tmp_path: Path
) -> None:
    def written_schema(name: str) -> pa.Schema:
        frame = spark.range(1).selectExpr("struct(array(timestamp_seconds(id)), 'a') as value")
        pointer = write_savepoint(tmp_path / name, {("new", "s"): frame})
        return holdfast.read_state(pointer, "new", "s").schema

    other = {
        "spark.sql.session.timeZone": "Asia/Kathmandu",
        "spark.sql.execution.arrow.useLargeVarTypes": "true",
    }
    with session_with(spark, other):
        schema = written_schema("other")
        collated = spark.sql("select named_struct('x', 'a' collate UNICODE_CI) as value")
        with pytest.raises(InvalidRequestError, match=r"\['value'\] of the rows of a state"):
            write_savepoint(tmp_path / "collated", {("new", "s"): collated})
    assert schema == written_schema("usual")


def test_names_of_flink_are_refused_with_the_setting() -> None:
    for name in ("execution.state-recovery.path", "execution.savepoint.path"):
        with pytest.raises(InvalidRequestError, match=f"is '{PATH}' here"):
            Settings.parse({f"spark.holdfast.{name}": "file:///x"})


def test_keyed_state_of_the_base_is_in_the_savepoint(tmp_path: Path) -> None:
    base = write_keyed(f"file://{tmp_path}/job-directory")
    pointer = write_savepoint(
        tmp_path / "written", {("op", "list"): pa.table({"subtask": [0], "value": [1]})}, base=base
    )
    shutil.rmtree(tmp_path / "job-directory")
    rows = holdfast.read_state(pointer, "op", "totals")
    assert rows["user"].to_pylist() == ["ann", "bob", None, "eve"]


class TestKeyedStates:
    """Keyed states are read as tables, changed, and written to the subtask of their keys."""

    @staticmethod
    def write(directory: Path, states: dict[str, Any], base: str | None = None) -> str:
        named = {("op", name): rows for name, rows in states.items()}
        return write_savepoint(directory / "written", named, base=base)

    @pytest.mark.parametrize("name", ["totals", "people", "lists", "pages", "_timers/event/timers"])
    def test_state_is_unchanged_after_reading_and_writing(self, tmp_path: Path, name: str) -> None:
        base = keyed_checkpoint(f"file://{tmp_path}/job-directory")
        before = holdfast.read_state(base, "op", name)
        pointer = self.write(tmp_path, {name: before}, base)
        shutil.rmtree(tmp_path / "job-directory")
        after = holdfast.read_state(pointer, "op", name)
        rows = [tuple(sorted(row.items(), key=str)) for row in before.to_pylist()]
        assert sorted(rows, key=str) == sorted(
            [tuple(sorted(row.items(), key=str)) for row in after.to_pylist()], key=str
        )
        assert keyed_content(pointer) == KEYED_CONTENT

    def test_states_can_be_changed_removed_and_kept(self, tmp_path: Path) -> None:
        base = keyed_checkpoint(f"file://{tmp_path}/job-directory")
        totals = pa.table({"user": ["ann", "new", None], "value": [100, 200, 300]})
        pointer = self.write(tmp_path, {"totals": totals, "people": None}, base)
        content = keyed_content(pointer)
        assert content["totals"] == {"ann": 100, "bob": None, "eve": None, None: 300}
        assert content["people"] == dict.fromkeys(KEYED_NAMES)
        assert content["pages"] == KEYED_CONTENT["pages"]
        assert holdfast.read_state(pointer, "op", "totals", key="new")["value"].to_pylist() == [200]

    def test_new_keyed_states_have_descriptors_or_kinds(self, tmp_path: Path) -> None:
        names = pa.array(KEYED_NAMES)
        totals = StateRows(
            pa.table({"user": names, "value": pa.array([1, 2, 3, 4])}),
            ValueStateDescriptor("totals", pa.int64()),
        )
        lists = StateRows(
            pa.table({"user": names, "value": [[1], [1, 2], [], [3]]}), kind="keyed list"
        )
        pointer = write_savepoint(
            tmp_path / "written",
            {("op", "totals"): totals, ("op", "lists"): lists},
            operators={"op": NewOperator(3, 8, key="user")},
        )
        content = keyed_content(pointer)
        assert content["totals"] == dict(zip(KEYED_NAMES, [1, 2, 3, 4], strict=True))
        assert content["lists"] == dict(zip(KEYED_NAMES, [[1], [1, 2], [], [3]], strict=True))

    def test_lists_of_nulls_are_written_and_read(self, tmp_path: Path) -> None:
        schema = pa.schema(
            [("user", pa.string()), ("value", pa.struct([("none", pa.list_(pa.null()))]))]
        )
        values = [{"none": [None] * number} for number in range(4)]
        rows = pa.table([pa.array(["x", "ann", "bob", "y"]), pa.array(values)], schema).slice(1, 2)
        states = {
            ("op", "value"): StateRows(rows, kind="keyed value"),
            ("op", "lists"): StateRows(
                pa.table({"user": rows["user"], "value": pc.struct_field(rows["value"], "none")}),
                kind="keyed list",
            ),
            ("other", "elements"): rows.select(["value"]),
        }
        operators = {"op": NewOperator(2, 8, key="user"), "other": NewOperator(2)}
        pointer = write_savepoint(tmp_path / "written", states, operators=operators)
        again = {state: holdfast.read_state(pointer, *state) for state in states}
        changed = {state: table.slice(0, 2) for state, table in again.items()}
        pointer = write_savepoint(tmp_path / "again", changed, base=pointer)
        for state in states:
            read = holdfast.read_state(pointer, *state)["value"].to_pylist()
            lists = read if state[1] == "lists" else [value["none"] for value in read]
            assert sorted(map(len, lists)) == [1, 2], state

    def test_time_to_live_starts_at_the_last_change(self, tmp_path: Path) -> None:
        ttl = StateTtlConfig(timedelta(seconds=1))
        rows = pa.table(
            {
                "user": ["ann", "bob"],
                "value": [1, 2],
                "changed": pa.array([1000, 1500], pa.timestamp("ms", "UTC")),
            }
        )
        descriptor = ValueStateDescriptor("totals", pa.int64(), ttl=ttl)
        pointer = write_savepoint(
            tmp_path / "written",
            {("op", "totals"): StateRows(rows, descriptor)},
            operators={"op": NewOperator(1, 8, key="user")},
        )
        backend = restored_keyed(pointer)
        backend.advance_time(2000)
        keys = backend.keys([pa.array(["ann", "bob"])])
        values = backend.get_state(descriptor).columns.get(keys)
        by_name = dict(zip(keys.columns[0].to_pylist(), values.to_pylist(), strict=True))
        assert by_name == {"ann": None, "bob": 2}

    @pytest.mark.parametrize(
        ("rows", "message"),
        [
            (pa.table({"user": ["ann", "ann"], "value": [1, 2]}), "a key twice; 0.0 and -0.0"),
            (pa.table({"name": ["ann"], "value": [1]}), "they need"),
            (pa.table({"user": ["ann"], "value": ["much"]}), "doesn't fit"),
            (pa.table({"user": [b"\xff"], "value": [1]}), "must be of type string"),
            (
                StateRows(
                    pa.table({"user": ["ann"], "value": [1]}),
                    ValueStateDescriptor("other", pa.int64()),
                ),
                "give both the same name",
            ),
        ],
    )
    def test_rows_of_another_schema_are_refused(
        self, tmp_path: Path, rows: Any, message: str
    ) -> None:
        base = keyed_checkpoint(f"file://{tmp_path}/job-directory")
        with pytest.raises(InvalidRequestError, match=message):
            self.write(tmp_path, {"totals": rows}, base)
        assert list((tmp_path / "written").iterdir()) == []

    def test_keyed_state_needs_an_operator_with_a_key(self, tmp_path: Path) -> None:
        rows = StateRows(pa.table({"user": ["ann"], "value": [1]}), kind="keyed value")
        with pytest.raises(InvalidRequestError, match="names of its key columns"):
            self.write(tmp_path, {"totals": rows})
