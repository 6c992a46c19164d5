"""Kills of the driver or of an executor at random moments do not change the results.

`HOLDFAST_KILLS` is the number of kills on each storage; `HOLDFAST_SEED` repeats the choices of a run.
"""

import os
import random
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from examples.demo.account import retained_checkpoints
from examples.demo.check import output_files, read_output, row_differences
from examples.demo.fleet_check import expected_results, fleet_differences, read_results
from examples.demo.flights import in_order_of_departure, read_flights, write_stream
from examples.demo.job_process import JobProcess
from examples.demo.job_start import SCHEMA
from examples.demo.kills import Progress
from examples.demo.places import FLEET, FLIGHTS, Job, Places
from examples.demo.servers import SERVERS, NoServerError
from holdfast import progress_of
from holdfast.backends import ListStateDescriptor, OperatorStateBackend
from integration_tests.operators_check import check_operators
from integration_tests.operators_job import JOB

KILLS = int(os.environ.get("HOLDFAST_KILLS", "1"))
SEED = int(os.environ.get("HOLDFAST_SEED", str(time.time_ns() % 1_000_000)))
BATCHES = max(12, 3 * KILLS)
ROWS = 2000
LOCAL, CLUSTER = "local[2]", "local-cluster[2,1,1024]"
LONGEST_WAIT_S = 0.7
LOOK_EVERY_S = 0.01

pytestmark = [
    pytest.mark.skipif(
        "HOLDFAST_KILLS" not in os.environ,
        reason="`make kills` runs it; the demo kills the jobs, too",
    ),
    pytest.mark.timeout(900 + 60 * KILLS),
]


@dataclass(frozen=True)
class Outcome:
    """The result of a job.

    Attributes:
        output: The rows that the sink has written.
        state: The rows that wait in the state, by subtask.
        retained: Ids of the retained checkpoints.
        batch: The batch of the latest one.
    """

    output: pa.Table
    state: list[pa.Table]
    retained: list[int]
    batch: int


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    # A part of them, because a batch must be short compared with the start of Spark.
    return in_order_of_departure(read_flights()).slice(0, ROWS * BATCHES)


@pytest.fixture(scope="module")
def undisturbed_outcome(flights: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    places = places_in(tmp_path_factory.mktemp("undisturbed"), FLIGHTS, flights)
    job = JobProcess(places, drain=False)
    try:
        while job.exit_code is None:
            time.sleep(LOOK_EVERY_S)
    finally:
        job.kill()
    assert job.exit_code == 0, places.spark_log.read_text()[-3000:]
    return outcome(places)


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest) -> Iterator[str | None]:
    before = dict(os.environ)  # a server sets variables for all child processes
    try:
        with SERVERS.get(request.param, nullcontext)() as uri:
            yield uri
    except NoServerError as error:
        pytest.skip(str(error))
    finally:
        os.environ.clear()
        os.environ.update(before)


def test_repeatedly_killed_job_has_the_results_of_an_undisturbed_one(
    store: str | None, flights: pa.Table, undisturbed_outcome: Outcome, tmp_path: Path
) -> None:
    places = replace(places_in(tmp_path, FLIGHTS, flights), store=store)
    run_and_kill(places, random.Random(SEED))
    result = outcome(places)
    held = [state.cast(result.output.schema) for state in result.state]
    seen = pa.concat_tables([result.output, *held])
    assert len(result.output)
    assert row_differences(flights.slice(0, ROWS * (BATCHES - 1)), seen) == []  # one is held back
    assert result.retained == [result.batch - 1, result.batch, result.batch + 1]
    # Killed between its log of files and that of offsets, Spark takes two files in one batch.
    assert result.batch <= undisturbed_outcome.batch == BATCHES - 2
    if result.batch == undisturbed_outcome.batch:
        assert row_differences(undisturbed_outcome.output, result.output) == []
        for wanted, waiting in zip(undisturbed_outcome.state, result.state, strict=True):
            assert row_differences(wanted, waiting) == []


def test_repeatedly_killed_keyed_job_has_the_results_of_a_plain_query(
    store: str | None, flights: pa.Table, tmp_path: Path
) -> None:
    places = replace(places_in(tmp_path, FLEET, flights), store=store)
    run_and_kill(places, random.Random(SEED))
    assert fleet_differences(expected_results(flights), read_results(places)) == []


def test_repeatedly_killed_operators_have_the_results_of_plain_python(
    flights: pa.Table, tmp_path: Path
) -> None:
    places = places_in(tmp_path, JOB, flights)
    run_and_kill(places, random.Random(SEED))
    check_operators(flights, places)


def places_in(root: Path, job: Job, flights: pa.Table) -> Places:
    places = Places(root, job)
    write_stream(flights, places, BATCHES, hold_back=job is FLIGHTS)
    return places


def run_and_kill(places: Places, chance: random.Random) -> None:
    """Run the job to its end, with kills at random moments."""
    killed = run_until_end(places, chance)
    print(f"seed {SEED}: {killed.count('driver')} drivers, {len(killed)} kills: {killed}")
    assert len(killed) >= KILLS, "the job was too quick for as many kills"


def run_until_end(places: Places, chance: random.Random) -> list[str]:
    """Run the job until it ends; returns the names of killed processes in order."""
    killed: list[str] = []
    while True:
        master = chance.choice((LOCAL, CLUSTER))
        job = JobProcess(places, drain=False, master=master)
        lost_executors = 0
        try:
            if master == CLUSTER:
                lost = kill_executors(job, places, chance, max_kills=min(2, KILLS - len(killed)))
                lost_executors = len(lost)
                killed += lost
            if len(killed) < KILLS and wait_for_progress(job, places, chance):
                job.kill()
                killed.append("driver")
                continue
            while job.exit_code is None:
                time.sleep(LOOK_EVERY_S)
        finally:
            job.kill()
        if job.exit_code == 0:
            return killed
        # A batch whose rows pass the operator twice is aborted, and so is the run.
        assert lost_executors, places.spark_log.read_text()[-3000:]


def kill_executors(
    job: JobProcess, places: Places, chance: random.Random, *, max_kills: int
) -> list[str]:
    """Kill executors or their Python workers, one after the other; returns their names."""
    killed = []
    for _ in range(max_kills):
        if not wait_for_progress(job, places, chance):
            break
        candidates = [process for process in map(process_of, job.members()) if process]
        executors = [
            process
            for process in candidates
            if "CoarseGrainedExecutorBackend" in command_of(process)
        ]
        workers = [
            process for process in candidates if "daemon pyspark.worker" in command_of(process)
        ]
        name, victims = chance.choice([("executor", executors), ("python worker", workers)])
        if victims:
            chance.choice(victims).kill()
            killed.append(name)
    return killed


def wait_for_progress(job: JobProcess, places: Places, chance: random.Random) -> bool:
    """Wait until the job has done something more, and then some time; False if it has ended."""
    progress = Progress(places)
    before = progress.next_batch()
    while job.exit_code is None and progress.next_batch() == before:
        time.sleep(LOOK_EVERY_S)
    time.sleep(chance.uniform(0, LONGEST_WAIT_S))
    return job.exit_code is None


def process_of(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return ""


def outcome(places: Places) -> Outcome:
    """Read the result of the job from its files."""
    retained = retained_checkpoints(places)
    metadata = retained[-1].metadata
    types = {"long": pa.int64(), "string": pa.string(), "timestamp": pa.timestamp("us", "UTC")}
    columns = [column.split() for column in SCHEMA.split(",")]
    descriptor = ListStateDescriptor(
        "rows", pa.schema([(name, types[kind]) for name, kind in columns])
    )
    state = []
    for _, subtask in sorted(metadata.operators["right-size"].subtasks.items()):
        backend = OperatorStateBackend.restore(subtask.managed_operator)
        state.append(backend.get_list_state(descriptor).to_table())
    return Outcome(
        output=read_output(output_files(places.outputs[0])),
        state=state,
        retained=[checkpoint.checkpoint_id for checkpoint in retained],
        batch=progress_of(metadata).batch_id,
    )
