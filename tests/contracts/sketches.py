"""Sketches of distinct values. Tests that use them are skipped without the package, which not every Python has."""

from collections.abc import Iterable

import pytest


def sketch_of(values: Iterable[int]) -> bytes:
    """Return a sketch with Spark's default settings."""
    package = pytest.importorskip("datasketches")
    sketch = package.hll_sketch(12, package.tgt_hll_type.HLL_8)
    for value in values:
        sketch.update(value)
    data: bytes = sketch.serialize_updatable()
    return data


def estimate_of(sketch: bytes) -> float:
    """Return the estimated number of distinct values in a sketch."""
    hll_sketch = pytest.importorskip("datasketches").hll_sketch
    return float(hll_sketch.deserialize(sketch).get_estimate())
