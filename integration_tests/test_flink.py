"""State of a real Flink is imported, and exported to a real Flink on another backend, at another parallelism."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from contracts.flink_archives import extract
from servers.flink import FlinkJob

from holdfast import StateRows, flink, read_state, write_savepoint

ROOT = Path(__file__).parents[1]
KEYS = range(20)
CENTURY_MS = 100 * 365 * 86_400_000


def import_job(job: FlinkJob, directory: Path, *arguments: str) -> str:
    """Import the state of the job; returns the pointer of the savepoint."""
    [[_, written]] = job("StateJob", "write", *arguments, "2", f"file://{directory}/flink")
    savepoint = flink.open_savepoint(Path(written.removeprefix("file:")))
    ttl_ms = {("by-long", "seen"): CENTURY_MS}
    return flink.import_savepoint(savepoint, f"file://{directory}/holdfast", ttl_ms=ttl_ms)


def with_prices(pointer: str, directory: Path) -> str:
    """Add a state of decimals to the savepoint, because those of Flink are imported as strings."""
    rows = pa.table(
        {
            "key": pa.array(KEYS, pa.int64()),
            "value": pa.array(map(price, KEYS), pa.decimal128(30, 3)),
        }
    )
    prices = {("by-long", "price"): StateRows(rows, kind="keyed value")}
    return write_savepoint(f"file://{directory}/with-prices", prices, base=pointer)


def price(key: int) -> Decimal:
    return Decimal(f"{key - 7}000000000000000.125")


def times(key: int) -> str:
    """Return Java's text of a tuple of times."""
    day = date(1900, 2, 28) + timedelta(days=900 * key)
    time = f"{key:02}:59:01" + (f".{key * 1_000_001:09}" if key else "")
    instant = datetime.fromtimestamp(0, UTC) + timedelta(seconds=-key, microseconds=key)
    return f"({day},{time},{day}T{time},{instant.isoformat().removesuffix('+00:00')}Z)"


def expected_rows(parallelism: int) -> set[tuple[str, ...]]:
    """Return the rows that the job prints for restored state."""
    rows: list[tuple[Any, ...]] = []
    for key in KEYS:
        number = str(key / 8)
        truth = "true" if key % 2 == 0 else "false"
        rows += [
            ("value", key, 10 * key),
            ("list", key, f"[{key}, 44]"),
            ("map", key, f"{{a={key}, b{key}={2 * key}}}"),
            ("reducing", key, key + 5),
            ("aggregating", key, f"{2 * key + 1}/2"),
            ("mixed", key, f"({truth},{-key},{number},[x{key}, é中😀])"),
            ("seen", key, key),
            ("times", key, times(key)),
            ("price", key, price(key)),
            ("timer", key, 1_000_000 + key),
            ("count", key, key + 1),
        ]
    rows += [("longs", 100 * subtask + number) for subtask in range(2) for number in range(5)]
    for subtask in range(parallelism):
        rows += [("union", subtask, "u0"), ("union", subtask, "u1")]
        rows += [("rules", subtask, "one", 1), ("rules", subtask, "two", 2)]
    return {tuple(map(str, row)) for row in rows}


@pytest.mark.parametrize(
    ("arguments", "backend"),
    [(("hashmap", "canonical"), "rocksdb"), (("rocksdb", "native"), "hashmap")],
)
def test_state_is_imported_from_flink_and_exported_back(
    flink_job: FlinkJob, tmp_path: Path, arguments: tuple[str, str], backend: str
) -> None:
    pointer = import_job(flink_job, tmp_path, *arguments)
    values = read_state(pointer, "by-long", "value")
    assert pairs(values) == {key: 10 * key for key in KEYS}
    pointer = with_prices(pointer, tmp_path)
    back = flink.export_savepoint(pointer, f"file://{tmp_path}/back")
    printed = flink_job("StateJob", "read", backend, "-", "3", back)
    assert {tuple(line) for line in printed} == expected_rows(3)
    assert len(printed) == len(expected_rows(3))


TIMERS_ON_HEAP = "state.backend.rocksdb.timer-service.factory=HEAP"
INCREMENTAL = "execution.checkpointing.incremental=true"
IN_FILES = "execution.checkpointing.data-inline-threshold=1b"


@pytest.mark.exhaustive  # a job of Flink for each setting, of 15 s of CPU
@pytest.mark.parametrize(
    "settings",
    [
        ("hashmap", "canonical", "execution.checkpointing.snapshot-compression=true"),
        ("hashmap", "native", "execution.checkpointing.snapshot-compression=true"),
        ("hashmap", "checkpoint"),
        ("hashmap", "checkpoint", "execution.checkpointing.unaligned.enabled=true"),
        ("rocksdb", "checkpoint", INCREMENTAL),
        ("rocksdb", "checkpoint", INCREMENTAL, TIMERS_ON_HEAP),
        ("rocksdb", "checkpoint", "execution.checkpointing.file-merging.enabled=true", IN_FILES),
        ("rocksdb", "canonical", TIMERS_ON_HEAP),
        ("forst", "native"),
    ],
    ids="-".join,
)
def test_state_is_the_same_for_all_flink_settings(
    flink_job: FlinkJob, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    backend, form, *options = settings
    arguments = ["write", backend, form, "2", f"file://{tmp_path}/flink", *options]
    [[_, written]] = flink_job("StateJob", *arguments)
    savepoint = flink.open_savepoint(Path("/", written.removeprefix("file:").lstrip("/")))
    assert not savepoint.states().column("failure").drop_null()
    values = savepoint.read_state("by-long", "value", check_keys=True)
    assert pairs(values) == {key: 10 * key for key in KEYS}
    maps = pairs(savepoint.read_state("by-long", "map"))
    assert {key: dict(entries) for key, entries in maps.items()} == {
        key: {"a": key, f"b{key}": 2 * key} for key in KEYS
    }
    counts = savepoint.read_state("by-pair", "count", check_keys=True)
    assert sorted(counts.column("value").to_pylist()) == [key + 1 for key in KEYS]
    timers = savepoint.timers("by-long", check_keys=True)
    assert sorted(timers.column("timestamp").to_pylist()) == [
        *(1_000_000 + key for key in KEYS),
        *(4_102_444_800_000 + key for key in KEYS),
    ]
    longs = savepoint.read_state("numbers", "longs").column("value").to_pylist()
    assert sorted(longs) == [100 * subtask + number for subtask in range(2) for number in range(5)]
    assert pairs(savepoint.read_state("numbers", "rules")) == {"one": 1, "two": 2}


def pairs(rows: pa.Table) -> dict[Any, Any]:
    """Return the values by their keys."""
    return dict(zip(*rows.select(["key", "value"]).to_pydict().values(), strict=True))


def test_job_of_the_guide_has_equal_results_in_flink_and_pyspark(
    flink_job: FlinkJob, tmp_path: Path
) -> None:
    extract(tmp_path, "orders")
    later = tmp_path / "later"
    later.mkdir()
    (later / "orders.csv").write_text("ann,tea,10\neve,milk,2\nmax,tea,9\n")
    savepoints, pointer = f"file://{tmp_path}/savepoints", f"file://{tmp_path}/orders"
    *totals, _ = flink_job("Orders", str(later), "3", savepoints, pointer)
    page = (ROOT / "docs" / "from-flink.md").read_text()
    for customer, total, products in totals:
        pairs = [pair.split("=") for pair in products.strip("{}").split(", ")]
        assert f"\n{customer} {total} {[(name, int(sum)) for name, sum in pairs]}\n" in page
    assert len(totals) == 3
