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
from pyspark.sql import DataFrame, SparkSession
from servers.postgres import PostgresServer

from holdfast.errors import InvalidRequestError, StorageUnavailableError
from holdfast.locations import CheckpointMetadata, CompletedCheckpoint, complete_checkpoint
from holdfast.locations.adapters import CheckpointStorageLocation, JobOwnership
from holdfast.spark.sinks.postgres import TwoPhaseCommitSink

FILES = 4

# Points at which the driver dies: whether the batch is committed then, and possible numbers of prepared
# transactions of its two subtasks that are in doubt.
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
    """Ids that the job writes without failures."""
    job = Job(spark, tmp_path_factory.mktemp("undisturbed"))
    job.feed(FILES)
    job.run(job.operator(Groups(GROUP)))
    return job.ids_written()


@pytest.fixture(scope="module")
def killed_jobs(
    spark: SparkSession, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The directories of jobs whose driver was killed while each of them was at another point."""
    directory = tmp_path_factory.mktemp("killed")
    for name in POINTS:
        create(postgres, name)
        job_of(spark, directory, name).feed(FILES)
    run_until_killed("-m", "jobs.two_phases", str(directory), postgres.dsn)
    return directory


@pytest.fixture
def table(postgres: PostgresServer) -> str:
    """An empty table without transactions."""
    name = f"rows_{uuid.uuid4().hex[:8]}"
    create(postgres, name)
    return name


def create(postgres: PostgresServer, table: str) -> None:
    postgres.execute(f"CREATE TABLE {table} (id bigint, at timestamptz, name text, driver text)")


def connecting(postgres: PostgresServer) -> partial[psycopg.Connection]:
    return partial(psycopg.connect, postgres.dsn)


def ids_in(postgres: PostgresServer, table: str, condition: str = "true") -> list[int]:
    rows = postgres.execute(f"SELECT id FROM {table} WHERE {condition} ORDER BY id")
    return [int(str(number)) for (number,) in rows]


def in_doubt(postgres: PostgresServer, table: str) -> list[str]:
    """Return the names of the transactions that are prepared for the table."""
    return [name for name in postgres.in_doubt() if f"-{table}-" in name]


@pytest.mark.parametrize("name", KILLED, ids=POINTS.get)
def test_driver_killed_at_any_point_loses_and_duplicates_nothing(
    spark: SparkSession,
    postgres: PostgresServer,
    killed_jobs: Path,
    reference: list[int],
    name: str,
) -> None:
    job = job_of(spark, killed_jobs, name)
    counts, can_be_in_doubt = KILLED[name]
    assert job.checkpoint_ids()[-1] == (BATCH + 1 if counts else BATCH)
    assert len(in_doubt(postgres, name)) in can_be_in_doubt

    sink = SignedSink(connecting(postgres), name, driver="restarted")
    job.run(job.operator(Groups(GROUP), sink=sink))

    assert ids_in(postgres, name) == reference
    assert in_doubt(postgres, name) == []
    signed = postgres.execute(f"SELECT count(*) FROM {name} WHERE driver = 'killed'")
    # Two subtasks emit 30, then 60 of their rows.
    assert signed == [(180 if counts else 60,)]


def test_late_driver_completes_and_its_successor_is_rolled_back(
    spark: SparkSession, postgres: PostgresServer, killed_jobs: Path, reference: list[int]
) -> None:
    table = "late"
    job = job_of(spark, killed_jobs, table)
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
    """A sink whose server is down when it is notified of certain checkpoints."""

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


def test_failed_commit_is_repeated_later(
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
    sink = CutOff(postgres, table, {3, 4})  # it resumes from 3
    job.run(job.operator(Groups(GROUP), sink=sink))
    assert sink.in_doubt_at == {3: 2, 4: 4}

    job.repeat_last_batch()
    job.run(job.operator(Groups(GROUP), sink=CutOff(postgres, table, set())))
    assert ids_in(postgres, table) == reference
    assert in_doubt(postgres, table) == []


def test_batch_failed_before_the_sink_rolls_back_nothing(
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


def test_transactions_of_a_failed_checkpoint_are_rolled_back(
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


def test_transactions_of_a_declined_batch_are_rolled_back(
    job: Job, postgres: PostgresServer, table: str
) -> None:
    job.feed(1)

    class RunsRowsTwice(SignedSink):
        calls = 0

        def __call__(self, rows: DataFrame, batch_id: int) -> None:
            self.calls += 1
            super().__call__(rows, batch_id)
            if self.calls == 1:
                super().__call__(rows, batch_id)

    sink = RunsRowsTwice(connecting(postgres), table, driver="declined")
    job.run(job.operator(Groups(GROUP), sink=sink))
    assert sink.calls == 2
    assert in_doubt(postgres, table) == []
    assert len(ids_in(postgres, table)) == 60


def test_transactions_of_a_failed_task_are_rolled_back(
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


def test_transactions_of_other_programs_are_kept(
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


def test_sink_without_a_checkpoint_refuses_rows(spark: SparkSession) -> None:
    sink = TwoPhaseCommitSink(psycopg.connect, "rows", job="job")
    with pytest.raises(InvalidRequestError, match="pass it as sink="):
        sink(spark.range(1), 0)


@pytest.mark.parametrize("job_name", ["", "a" * 101, "a b", "ä"])
def test_invalid_name_for_a_transaction_is_refused(job_name: str) -> None:
    with pytest.raises(InvalidRequestError, match="1 to 100 letters"):
        TwoPhaseCommitSink(psycopg.connect, "rows", job=job_name)
