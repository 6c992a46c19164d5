"""HLL sketches of Apache DataSketches as bytes: how many distinct values there are, about.

Spark's `hll_sketch_agg` writes the same bytes, and its `hll_sketch_estimate` reads what is made here.
The package is loaded when the first sketch is: who has none needs no `holdfast[sketches]`.
"""

from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import pyarrow as pa

from holdfast.backends.arrow.casts import MisfitError
from holdfast.errors import InvalidRequestError


def check_sketches() -> None:
    """Refuse sketches where their package is missing. Raises `InvalidRequestError`."""
    _datasketches()


def union_of_sketches(sketches: Sequence[bytes]) -> bytes:
    """A sketch of all values that these are of, as large as the largest of them.

    Raises:
        MisfitError: Bytes are no sketch.
        InvalidRequestError: The package is not installed.
    """
    package = _datasketches()
    read = [_read(data) for data in sketches]
    union = package.hll_union(max(sketch.lg_config_k for sketch in read))
    for sketch in read:
        union.update(sketch)
    result: bytes = union.get_result(package.tgt_hll_type.HLL_8).serialize_compact()
    return result


def estimates_of_sketches(sketches: Iterable[bytes | None]) -> pa.Array:
    """How many distinct values each sketch is of, rounded as by Spark; 0 of no sketch.

    Raises:
        MisfitError: Bytes are no sketch.
        InvalidRequestError: The package is not installed.
    """
    counts = [0 if data is None else int(_read(data).get_estimate() + 0.5) for data in sketches]
    return pa.array(counts, pa.int64())


def _read(data: bytes) -> Any:
    try:
        return _datasketches().hll_sketch.deserialize(data)
    except (RuntimeError, ValueError, IndexError) as error:
        raise MisfitError(f"{len(data)} bytes are no HLL sketch: {error}") from error


def _datasketches() -> ModuleType:
    try:
        import datasketches  # noqa: PLC0415  # optional
    except ImportError as error:
        message = (
            "sketches of distinct values need a package, here and on every executor: "
            "pip install 'holdfast[sketches]'"
        )
        raise InvalidRequestError(message) from error
    package: ModuleType = datasketches
    return package
