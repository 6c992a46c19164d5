"""HLL sketches of Apache DataSketches, as bytes: approximate numbers of distinct values.

Spark's `hll_sketch_agg` writes the same bytes, and its `hll_sketch_estimate` reads those that are written here.
The package is imported with the first sketch: jobs without sketches don't need `holdfast[sketches]`.
"""

from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import pyarrow as pa

from holdfast.backends.arrow.casts import IncompatibleValueError
from holdfast.errors import InvalidRequestError


def check_sketches() -> None:
    """Refuse sketches if their package is not installed. Raises `InvalidRequestError`."""
    _datasketches()


def union_of_sketches(sketches: Sequence[bytes]) -> bytes:
    """Return the sketch of the values of all sketches, with the size of the largest one.

    Raises `IncompatibleValueError` if bytes are not a sketch, and `InvalidRequestError` if the package is not installed.
    """
    package = _datasketches()
    read = [_read(data) for data in sketches]
    union = package.hll_union(max(sketch.lg_config_k for sketch in read))
    for sketch in read:
        union.update(sketch)
    result: bytes = union.get_result(package.tgt_hll_type.HLL_8).serialize_compact()
    return result


def estimates_of_sketches(sketches: Iterable[bytes | None]) -> pa.Array:
    """Estimate the number of distinct values of each sketch, rounded as Spark rounds it; 0 for None.

    Raises the same as `union_of_sketches`.
    """
    counts = [0 if data is None else int(_read(data).get_estimate() + 0.5) for data in sketches]
    return pa.array(counts, pa.int64())


def _read(data: bytes) -> Any:
    try:
        return _datasketches().hll_sketch.deserialize(data)
    except (RuntimeError, ValueError, IndexError) as error:
        raise IncompatibleValueError(f"{len(data)} bytes are not an HLL sketch: {error}") from error


def _datasketches() -> ModuleType:
    try:
        import datasketches  # noqa: PLC0415  # optional
    except ImportError as error:
        raise InvalidRequestError(
            "sketches of distinct values need a package, here and on every executor: "
            "pip install 'holdfast[sketches]'. On Python 3.14 install datasketches itself, with a "
            "C++ compiler: it has no wheel yet"
        ) from error
    package: ModuleType = datasketches
    return package
