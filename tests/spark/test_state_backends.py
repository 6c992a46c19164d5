"""The backend of keyed state is a setting, for a job and for operators: batches go on from each other's checkpoints."""

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from jobs.keyed import KeyedJob
from jobs.operators import Totals

from holdfast.backends.keyed import BackendName, RocksDBSettings
from holdfast.errors import InvalidRequestError
from holdfast.spark.settings import Settings, StateSettings

SCHEMA = pa.schema([("key", pa.int64()), ("id", pa.int64())])
OUTPUT = pa.schema([("key", pa.int64()), ("rows", pa.int64()), ("ids", pa.int64())])
KEYS = range(4000)


def test_a_job_goes_on_with_another_backend_and_parallelism(
    memory_directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = tmp_path / "blockmgr-1"
    local.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(local))
    runs: list[tuple[BackendName, dict[str, BackendName], int, set[str]]] = [
        ("rocksdb", {}, 2, set()),
        ("rocksdb", {}, 2, {"local"}),
        ("rocksdb", {}, 3, {"local"}),
        ("columnar", {}, 3, {"storage"}),  # what it reads anew it reads from storage
        ("heap", {"operator": "rocksdb"}, 1, {"storage"}),
        ("heap", {}, 2, {"storage"}),
    ]
    job: KeyedJob | None = None
    before: tuple[BackendName, dict[str, BackendName], int] | None = None
    for rounds, (backend, backends, parallelism, sources) in enumerate(runs, 1):
        if job is None or before != (backend, backends, parallelism):
            job = KeyedJob(
                memory_directory,
                Totals(),
                schema=SCHEMA,
                output=OUTPUT,
                parallelism=parallelism,
                state=StateSettings(
                    local_bytes=1 << 30,
                    duplicate_files=True,
                    backend=backend,
                    backends=tuple(backends.items()),
                ),
            )
            before = backend, backends, parallelism
        output = job.run([{"key": key, "id": key} for key in KEYS])
        assert {row["key"]: row["rows"] for row in output} == dict.fromkeys(KEYS, rounds)
        assert not sources or job.sources == sources, rounds
        names = [name for _, folders, _ in os.walk(local) for name in folders]
        assert not any(name.endswith(".rocksdb") for name in names)


class Fails(Totals):
    """Fails behind its first batch."""

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from super().process(batches)
        raise ValueError("it fails")


def test_a_task_that_fails_leaves_no_database_on_the_host(
    memory_directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = tmp_path / "blockmgr-1"
    local.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(local))
    job = KeyedJob(
        memory_directory,
        Fails(),
        schema=SCHEMA,
        output=OUTPUT,
        state=StateSettings(local_bytes=1 << 30, backend="rocksdb"),
    )
    with pytest.raises(ValueError, match="it fails"):
        job.run([{"key": key, "id": key} for key in KEYS])
    # Not even while somebody has the error, and all that led to it, still.
    assert list(local.rglob("holdfast/*"))
    assert not list(local.rglob("*.rocksdb"))


def test_backends_are_set_for_the_job_and_for_operators_by_uid() -> None:
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
        ({"spark.master": "spark://host:7077"}, None),  # the executor's host knows it
        ({}, None),
    ],
)
def test_the_tasks_of_an_executor_share_rocksdbs_memory(
    spark: dict[str, str], tasks: int | None
) -> None:
    memory = {"spark.holdfast.state.backend.rocksdb.memory": "64m"}
    settings = Settings.parse(spark | memory).state.rocksdb
    assert settings.processes == tasks
    assert settings.share_bytes == (64 << 20) // (tasks or os.cpu_count() or 1)


def test_rocksdb_memory_share_is_at_least_one_mib() -> None:
    assert RocksDBSettings(memory_bytes=2 << 20, processes=64).share_bytes == 1 << 20
    with pytest.raises(InvalidRequestError, match="processes must be >= 1"):
        RocksDBSettings(processes=0)


def test_rocksdb_is_set_by_the_names_of_flink() -> None:
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


def test_what_rocksdb_says_of_itself_is_in_the_statistics_if_that_is_asked_for(
    memory_directory: str,
) -> None:
    for has_metrics in (False, True):
        job = KeyedJob(
            f"{memory_directory}/{has_metrics}",
            Totals(),
            schema=SCHEMA,
            output=OUTPUT,
            parallelism=1,
            state=StateSettings(
                backend="rocksdb", rocksdb=RocksDBSettings(processes=4, has_metrics=has_metrics)
            ),
        )
        job.run([{"key": key, "id": key} for key in KEYS])
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
