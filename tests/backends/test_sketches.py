"""Sketches of distinct values that Spark 4.3 has made, as checkpoints keep them: always readable.

Each file of `data/v1/sketches` is `hll_sketch_agg(id, 12)` of numbers of `spark.range`. Spark's `hll_sketch_estimate` returned
what is expected here.
"""

from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.backends.arrow import estimates_of_sketches, union_of_sketches
from holdfast.backends.keyed import ColumnarStateTables, KeyedStateBackend
from holdfast.backends.keyed_state import ReducingStateDescriptor
from holdfast.backends.keys import KeyGroupRange
from holdfast.locations import FileSystemCheckpointStorage

SKETCHES = Path(__file__).parents[1] / "data" / "v1" / "sketches"
VALUES = {
    "few": range(3),
    "hundred": range(50, 150),
    "thousands": range(6000),
    "more": range(4000, 10_000),
}
ESTIMATES = {"few": 3, "hundred": 100, "thousands": 5977, "more": 5989}
GROUPS = KeyGroupRange(0, 127)


def sketch(name: str) -> bytes:
    return (SKETCHES / name).read_bytes()


@pytest.mark.parametrize("name", VALUES)
def test_sketch_of_sparks_is_counted_as_by_spark(name: str) -> None:
    assert estimates_of_sketches([sketch(name)]).to_pylist() == [ESTIMATES[name]]
    assert ESTIMATES[name] == pytest.approx(len(VALUES[name]), rel=0.02)


@pytest.mark.parametrize(
    ("names", "estimate"),
    [
        (["few", "few"], 3),
        (["few", "hundred"], 103),
        (["hundred", "thousands"], 5977),
        (["thousands", "few"], 5977),
        (["thousands", "more"], 9977),
        (["more", "hundred", "thousands", "few"], 9977),
    ],
)
def test_folded_sketches_count_each_value_once(names: list[str], estimate: int) -> None:
    folded = union_of_sketches([sketch(name) for name in names])
    distinct = set().union(*(VALUES[name] for name in names))
    assert estimates_of_sketches([folded]).to_pylist() == [estimate]
    assert estimate == pytest.approx(len(distinct), rel=0.03)
    again = union_of_sketches([folded, *(sketch(name) for name in names)])
    assert estimates_of_sketches([again]).to_pylist()[0] == pytest.approx(estimate, rel=0.01)


def test_sketches_come_out_of_a_checkpoint_as_they_went_in(memory_directory: str) -> None:
    storage = FileSystemCheckpointStorage(memory_directory).create_checkpoint_storage("job")
    storage.initialize_base_locations_for_checkpoint()
    key = pa.schema([("name", pa.string())])
    descriptor = ReducingStateDescriptor("distinct", "hll_union", pa.binary())
    backend = KeyedStateBackend(ColumnarStateTables(GROUPS), key, 128, GROUPS)
    keys = backend.keys([pa.array(list(VALUES))])
    names = keys.columns[0].to_pylist()
    state = backend.get_reducing_state(descriptor)
    state.columns.add(keys, [sketch(name) for name in VALUES])
    stored = backend.snapshot(1, storage.initialize_location_for_checkpoint(1)).run().state

    tables = ColumnarStateTables(GROUPS, stored.managed_keyed)  # type: ignore[arg-type]
    restored = KeyedStateBackend(tables, key, 128, GROUPS).get_reducing_state(descriptor)
    assert restored.columns.get(keys).to_pylist() == [sketch(name) for name in names]
    restored.columns.add(keys, [sketch("thousands")] * len(VALUES))
    estimates = estimates_of_sketches(restored.columns.get(keys).to_pylist()).to_pylist()
    assert dict(zip(names, estimates, strict=True))["few"] == 5977
