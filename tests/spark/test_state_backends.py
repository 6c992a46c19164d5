"""The backend of keyed state is a setting of jobs and operators: each resumes from checkpoints of the others."""

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from jobs.keyed import KeyedJob, totals_job, totals_rows
from jobs.operators import Totals

from holdfast.backends.keyed import BackendName, RocksDBSettings
from holdfast.errors import InvalidRequestError
from holdfast.spark.settings import Settings, StateSettings

KEYS = range(4000)
ROWS = totals_rows(KEYS)


def test_job_resumes_with_another_backend_and_parallelism(
    memory_directory: str, task_directory: Path
) -> None:
    runs: list[tuple[BackendName, dict[str, BackendName], int, set[str]]] = [
        ("rocksdb", {}, 2, set()),
        ("rocksdb", {}, 2, {"local"}),
        ("rocksdb", {}, 3, {"local"}),
        ("columnar", {}, 3, {"storage"}),  # another backend reads from storage
        ("heap", {"operator": "rocksdb"}, 1, {"storage"}),
        ("heap", {}, 2, {"storage"}),
    ]
    job: KeyedJob | None = None
    before: tuple[BackendName, dict[str, BackendName], int] | None = None
    for rounds, (backend, backends, parallelism, sources) in enumerate(runs, 1):
        if job is None or before != (backend, backends, parallelism):
            job = totals_job(
                memory_directory,
                parallelism=parallelism,
                state=StateSettings(
                    local_bytes=1 << 30,
                    duplicate_files=True,
                    backend=backend,
                    backends=tuple(backends.items()),
                ),
            )
            before = backend, backends, parallelism
        output = job.run(ROWS)
        assert {row["key"]: row["rows"] for row in output} == dict.fromkeys(KEYS, rounds)
        assert not sources or job.sources == sources, rounds
        names = [name for _, folders, _ in os.walk(task_directory) for name in folders]
        assert not any(name.endswith(".rocksdb") for name in names)


class Fails(Totals):
    """Fails after its batch."""

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from super().process(batches)
        raise ValueError("it fails")


def test_failed_task_leaves_no_database_on_the_host(
    memory_directory: str, task_directory: Path
) -> None:
    state = StateSettings(local_bytes=1 << 30, backend="rocksdb")
    job = totals_job(memory_directory, Fails(), state=state)
    with pytest.raises(ValueError, match="it fails"):
        job.run(ROWS)
    # Although the error and its traceback may still be alive.
    assert list(task_directory.rglob("holdfast/*"))
    assert not list(task_directory.rglob("*.rocksdb"))


def test_backends_are_set_for_the_job_and_for_uids() -> None:
    key = "spark.holdfast.state.backend"
    memory = {"spark.holdfast.state.backend.rocksdb.memory": "64m"}
    assert Settings.parse({}).state.backend == "columnar"
    state = Settings.parse({key: " RocksDB "} | memory).state
    assert (state.backend, state.backends) == ("rocksdb", ())
    assert state.rocksdb == RocksDBSettings(memory_bytes=64 << 20, processes=None)
    state = Settings.parse({key: "hashmap, a=b=rocksdb, c = columnar"}).state
    assert state.backend == "heap"
    assert state.backends == (("a=b", "rocksdb"), ("c", "columnar"))
    for wrong in ("", "forst", "=heap", "heap,", "a="):
        with pytest.raises(InvalidRequestError, match=r"state\.backend"):
            Settings.parse({key: wrong})
    for wrong, twice in (
        ("columnar, rocksdb", "all operators"),
        ("a=rocksdb, columnar, a=heap", "operator 'a'"),
    ):
        with pytest.raises(InvalidRequestError, match=f"state.backend.*two backends for {twice}"):
            Settings.parse({key: wrong})


@pytest.mark.parametrize(
    ("spark", "tasks"),
    [
        ({"spark.master": "local"}, 1),
        ({"spark.master": "local[3]", "spark.executor.cores": "8"}, 3),
        ({"spark.master": "local[4, 2]", "spark.task.cpus": "2"}, 2),
        ({"spark.master": "local-cluster[2, 4, 1024]"}, 4),
        ({"spark.master": "yarn"}, 1),
        ({"spark.master": "k8s://https://host", "spark.executor.cores": "4"}, 4),
        ({"spark.master": "spark://host:7077", "spark.executor.cores": "5"}, 5),
        ({"spark.master": "yarn", "spark.executor.cores": "1", "spark.task.cpus": "2"}, 1),
        ({"spark.master": "local[*]"}, os.cpu_count()),
        ({"spark.master": "spark://host:7077"}, None),  # only the executor's host knows the number
        ({}, None),
    ],
)
def test_tasks_of_an_executor_share_the_memory_of_rocksdb(
    spark: dict[str, str], tasks: int | None
) -> None:
    memory = {"spark.holdfast.state.backend.rocksdb.memory": "64m"}
    settings = Settings.parse(spark | memory).state.rocksdb
    assert settings.processes == tasks
    assert settings.share_bytes == (64 << 20) // (tasks or os.cpu_count() or 1)


def test_rocksdb_memory_share_is_1_mib_or_more() -> None:
    assert RocksDBSettings(memory_bytes=2 << 20, processes=64).share_bytes == 1 << 20
    with pytest.raises(InvalidRequestError, match="processes must be >= 1"):
        RocksDBSettings(processes=0)


def test_rocksdb_has_the_setting_names_of_flink() -> None:
    settings = {
        "memory": "64m",
        "memory.write-buffer-ratio": "0.25",
        "bloom-filter.bits-per-key": "12.0",
        "block.blocksize": "16k",
        "compaction.style": "UNIVERSAL",
        "compression": "lz4",
        "checkpoint.transfer.thread.num": "8",
        "metrics": "true",
    }
    prefix = "spark.holdfast.state.backend.rocksdb."
    parsed = Settings.parse({prefix + key: text for key, text in settings.items()}).state.rocksdb
    assert parsed == RocksDBSettings(
        memory_bytes=64 << 20,
        processes=None,
        write_buffer_ratio=0.25,
        bloom_bits=12,
        block_bytes=16 << 10,
        compaction_style="universal",
        compression="lz4",
        transfer_threads=8,
        has_metrics=True,
    )
    for key, wrong in (
        ("memory", "1k"),
        ("memory", "1025g"),
        ("memory.write-buffer-ratio", "1"),
        ("memory.write-buffer-ratio", "nan"),
        ("bloom-filter.bits-per-key", "-1"),
        ("bloom-filter.bits-per-key", "many"),
        ("block.blocksize", "0"),
        ("block.blocksize", "8g"),
        ("compaction.style", "fifo"),
        ("compression", "gzip"),
        ("checkpoint.transfer.thread.num", "0"),
        ("metrics", "some"),
    ):
        with pytest.raises(InvalidRequestError, match=prefix + key):
            Settings.parse({prefix + key: wrong})


def test_statistics_have_rocksdb_metrics_if_enabled(memory_directory: str) -> None:
    for has_metrics in (False, True):
        rocksdb = RocksDBSettings(processes=4, has_metrics=has_metrics)
        job = totals_job(
            f"{memory_directory}/{has_metrics}",
            parallelism=1,
            state=StateSettings(backend="rocksdb", rocksdb=rocksdb),
        )
        job.run(ROWS)
        (operator,) = job.latest.metadata.operators.values()
        statistics = operator.subtasks[0].statistics
        assert statistics is not None
        metrics = statistics.backend_metrics
        if not has_metrics:
            assert metrics == {}
            continue
        assert metrics["estimate-num-keys"] >= len(KEYS)
        assert metrics["live-sst-files-size"] > 0
        assert metrics["num-live-sst-files"] > 0
        assert metrics["flush-micros"] > 0
        assert metrics["block-cache-capacity"] == RocksDBSettings().memory_bytes // 4
        assert {"block-cache-hit", "block-cache-miss", "compaction-micros"} < metrics.keys()
