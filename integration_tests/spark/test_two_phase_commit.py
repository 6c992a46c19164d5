"""Rows in a table of PostgreSQL, exactly once: the driver is killed at every step of both phases."""

import uuid
from functools import partial
from pathlib import Path
from unittest import mock

import psycopg
import pytest
from jobs.job import Job
from jobs.killed import BATCH
from jobs.operators import Groups
from jobs.processes import run_until_killed
from jobs.two_phases import COMMIT, GROUP, POINTS, SignedSink, job_of
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from servers.postgres import PostgresServer

from examples.two_phase_commit import PostgresSink
from holdfast.errors import StorageUnavailableError
from holdfast.locations import CheckpointMetadata, CompletedCheckpoint, complete_checkpoint
from holdfast.locations.adapters import CheckpointStorageLocation, JobOwnership

FILES = 4

# Where the driver dies, whether the batch counts then, and how many of the transactions that its two
# subtasks have prepared can be in doubt.
KILLED = {
    "in_a_task": (False, {0, 1}),
    "before_prepare": (False, {0, 1}),
    "after_prepare": (False, {1, 2}),
    "before_metadata": (False, {2}),
    "after_metadata": (True, {2}),
    "before_commit": (True, {2}),
    "between_commits": (True, {1}),
    "after_commit": (True, {0}),
}


@pytest.fixture(scope="module")
def reference(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """Ids that the job writes if nothing happens to it."""
    job = Job(spark, tmp_path_factory.mktemp("undisturbed"))
    job.feed(FILES)
    job.run(job.operator(Groups(GROUP)))
    return job.ids_written()


@pytest.fixture(scope="module")
def killed(
    spark: SparkSession, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """What a driver has left that was killed while each of its jobs was at another point."""
    directory = tmp_path_factory.mktemp("killed")
    for name in POINTS:
        create(postgres, name)
        job_of(spark, directory, name).feed(FILES)
    run_until_killed("-m", "jobs.two_phases", str(directory), postgres.dsn)
    return directory


@pytest.fixture
def table(postgres: PostgresServer) -> str:
    """An empty table, of whose name the server knows no transactions."""
    name = f"rows_{uuid.uuid4().hex[:8]}"
    create(postgres, name)
    return name


def create(postgres: PostgresServer, table: str) -> None:
    postgres.execute(f"CREATE TABLE {table} (id bigint, at timestamptz, name text, driver text)")


def connecting(postgres: PostgresServer) -> partial[psycopg.Connection]:
    return partial(psycopg.connect, postgres.dsn)


def ids_in(postgres: PostgresServer, table: str, where: str = "true") -> list[int]:
    rows = postgres.execute(f"SELECT id FROM {table} WHERE {where} ORDER BY id")
    return [int(str(number)) for (number,) in rows]


def in_doubt(postgres: PostgresServer, table: str) -> list[str]:
    """Names of the transactions that are prepared for the table."""
    return [name for name in postgres.in_doubt() if f"-{table}-" in name]


@pytest.mark.parametrize("name", KILLED, ids=POINTS.get)
def test_a_driver_killed_at_any_point_loses_and_doubles_nothing(
    spark: SparkSession, postgres: PostgresServer, killed: Path, reference: list[int], name: str
) -> None:
    job = job_of(spark, killed, name)
    counts, can_be_in_doubt = KILLED[name]
    assert job.checkpoint_ids()[-1] == (BATCH + 1 if counts else BATCH)
    assert len(in_doubt(postgres, name)) in can_be_in_doubt

    sink = SignedSink(connecting(postgres), name, driver="restarted")
    job.run(job.operator(Groups(GROUP), sink=sink))

    assert ids_in(postgres, name) == reference
    assert in_doubt(postgres, name) == []
    signed = postgres.execute(f"SELECT count(*) FROM {name} WHERE driver = 'killed'")
    # Two subtasks let 30, then 60 of their rows through.
    assert signed == [(180 if counts else 60,)]


def test_what_a_late_driver_completes_is_committed_and_not_what_its_successor_has_prepared(
    spark: SparkSession, postgres: PostgresServer, killed: Path, reference: list[int]
) -> None:
    table = "late"
    job = job_of(spark, killed, table)
    late = (job.directory / "late").read_bytes()

    def overtaken(
        location: CheckpointStorageLocation, metadata: CheckpointMetadata, ownership: JobOwnership
    ) -> CompletedCheckpoint:
        assert len(in_doubt(postgres, table)) == 4
        file = Path(location.external_pointer.removeprefix("file://")) / "_metadata"
        file.write_bytes(late)
        return complete_checkpoint(location, metadata, ownership)

    sink = SignedSink(connecting(postgres), table, driver="successor")
    with mock.patch(COMMIT, overtaken):
        with pytest.raises(StreamingQueryException, match="an earlier driver of this job"):
            job.run(job.operator(Groups(GROUP), sink=sink))
    assert len(in_doubt(postgres, table)) == 2

    sink = SignedSink(connecting(postgres), table, driver="restarted")
    job.run(job.operator(Groups(GROUP), sink=sink))

    assert ids_in(postgres, table) == reference
    assert in_doubt(postgres, table) == []
    assert len(ids_in(postgres, table, "driver = 'killed'")) == 180
    assert ids_in(postgres, table, "driver = 'successor'") == []


class CutOff(SignedSink):
    """The server is away whenever it is told of certain checkpoints."""

    def __init__(self, postgres: PostgresServer, table: str, checkpoints: set[int]) -> None:
        super().__init__(connecting(postgres), table, driver="cut off")
        self.postgres = postgres
        self.table = table
        self.checkpoints = checkpoints
        self.in_doubt_at: dict[int, int] = {}

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        is_away = checkpoint_id in self.checkpoints
        if is_away:
            self.postgres.stop()
        try:
            super().notify_checkpoint_complete(checkpoint_id)
        finally:
            if is_away:
                self.postgres.start()
            self.in_doubt_at[checkpoint_id] = len(in_doubt(self.postgres, self.table))


def test_what_could_not_be_committed_is_committed_later(
    job: Job,
    postgres: PostgresServer,
    table: str,
    reference: list[int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    job.feed(FILES - 1)
    sink = CutOff(postgres, table, {1, 3})
    job.run(job.operator(Groups(GROUP), sink=sink))
    assert caplog.text.count("CutOff failed in notify_checkpoint_complete") == 2
    assert sink.in_doubt_at == {1: 2, 2: 0, 3: 2}

    job.feed(1)
    sink = CutOff(postgres, table, {3, 4})  # it goes on from 3
    job.run(job.operator(Groups(GROUP), sink=sink))
    assert sink.in_doubt_at == {3: 2, 4: 4}

    job.repeat_last_batch()
    job.run(job.operator(Groups(GROUP), sink=CutOff(postgres, table, set())))
    assert ids_in(postgres, table) == reference
    assert in_doubt(postgres, table) == []


def test_a_batch_that_failed_before_the_sink_rolls_nothing_back(
    job: Job, postgres: PostgresServer, table: str
) -> None:
    job.feed(1)
    sink = CutOff(postgres, table, {1})
    job.run(job.operator(Groups(GROUP), sink=sink))
    sink.notify_checkpoint_aborted(2)
    assert len(in_doubt(postgres, table)) == 2
    job.repeat_last_batch()
    job.run(job.operator(Groups(GROUP), sink=CutOff(postgres, table, set())))
    assert len(ids_in(postgres, table)) == 60


def test_what_was_prepared_for_a_checkpoint_that_failed_is_rolled_back(
    job: Job, postgres: PostgresServer, table: str
) -> None:
    job.feed(1)

    def fails(*_: object) -> CompletedCheckpoint:
        assert len(in_doubt(postgres, table)) == 2
        raise StorageUnavailableError("as planned")

    sink = SignedSink(connecting(postgres), table, driver="failed")
    with mock.patch(COMMIT, fails):
        with pytest.raises(StreamingQueryException, match="as planned"):
            job.run(job.operator(Groups(GROUP), sink=sink))
    assert in_doubt(postgres, table) == []
    assert ids_in(postgres, table) == []


def test_what_a_failed_task_has_prepared_is_rolled_back(
    job: Job, postgres: PostgresServer, table: str, tmp_path: Path
) -> None:
    marker = tmp_path / "failed"

    class FailsOnce(psycopg.Connection[tuple[object, ...]]):
        def tpc_prepare(self) -> None:
            super().tpc_prepare()
            try:
                marker.touch(exist_ok=False)
            except FileExistsError:
                return
            raise RuntimeError("as planned")

    counts: list[int] = []

    class Sink(SignedSink):
        def snapshot_state(self, checkpoint_id: int) -> bytes:
            counts.append(len(in_doubt(postgres, table)))
            return super().snapshot_state(checkpoint_id)

    job.feed(1)
    sink = Sink(partial(FailsOnce.connect, postgres.dsn), table, driver="only")
    job.run(job.operator(Groups(GROUP), sink=sink))
    assert marker.exists()
    assert counts == [3]
    assert in_doubt(postgres, table) == []
    assert len(ids_in(postgres, table)) == 60


def test_transactions_of_others_are_left_alone(
    job: Job, postgres: PostgresServer, table: str
) -> None:
    others = [f"holdfast-{table}-1", f"holdfast-{table}-x-1-{'0' * 16}-{'0' * 16}", "1_eA==_eA=="]
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        for other in others:
            connection.execute("BEGIN")
            connection.execute(f"PREPARE TRANSACTION '{other}'".encode())
    job.feed(1)
    sink = SignedSink(connecting(postgres), table, driver="only")
    job.run(job.operator(Groups(GROUP), sink=sink))
    assert set(others) <= set(postgres.in_doubt())
    assert in_doubt(postgres, table) == others[:2]
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        for other in others:
            connection.execute(f"ROLLBACK PREPARED '{other}'".encode())


def test_a_sink_that_no_checkpoint_knows_takes_no_rows(spark: SparkSession) -> None:
    sink = PostgresSink(psycopg.connect, "rows", job="job")
    with pytest.raises(RuntimeError, match="pass it as sink="):
        sink(spark.range(1), 0)


@pytest.mark.parametrize("job_name", ["", "a" * 101, "a b", "ä"])
def test_a_name_that_cannot_be_part_of_a_transactions_name_is_refused(job_name: str) -> None:
    with pytest.raises(ValueError, match="1 to 100 letters"):
        PostgresSink(psycopg.connect, "rows", job=job_name)
