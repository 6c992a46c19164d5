"""Java's hash codes of columns of keys, which determine Flink's key groups.

Classes of the job define `hashCode` themselves, so only keys of these types can be compared with their key groups.

Source:
    Java, hashCode of Long, Integer, Boolean, Double, Float and String; Flink, Tuple2.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.backends.keys import java_hash

if TYPE_CHECKING:
    from holdfast.flink.serializers.serializer import HashCodes

Codes = npt.NDArray[np.int32]
_HALF = np.uint64(32)


def of_ints(column: pa.Array) -> Codes:
    """Compute hash codes of integers of at most 32 bits."""
    return _numbers(column).astype(np.int32)


def of_longs(column: pa.Array) -> Codes:
    return _halves(_numbers(column).view(np.uint64))


def of_booleans(column: pa.Array) -> Codes:
    return np.where(_numbers(column), 1231, 1237).astype(np.int32)


def of_floats(column: pa.Array) -> Codes:
    """Compute hash codes of 32-bit or 64-bit floats. Java has one NaN, and 0.0 differs from -0.0."""
    numbers = _numbers(column)
    numbers = np.where(np.isnan(numbers), np.nan, numbers).astype(numbers.dtype)
    if numbers.dtype == np.float32:
        return numbers.view(np.int32)
    return _halves(numbers.view(np.uint64))


def of_texts(column: pa.Array) -> Codes:
    codes = [0 if text is None else java_hash(text) for text in column.to_pylist()]
    return np.array(codes, np.int32)


def of_tuples(fields: "Sequence[HashCodes]") -> "HashCodes":
    """Return the hash function of tuples from those of their fields."""

    def of_tuple(column: pa.Array) -> Codes:
        codes = np.zeros(len(column), np.uint32)
        for part, of_field in zip(column.flatten(), fields, strict=True):
            codes = codes * np.uint32(31) + of_field(part).view(np.uint32)
        return codes.view(np.int32)

    return of_tuple


def _halves(bits: npt.NDArray[np.uint64]) -> Codes:
    return (bits ^ bits >> _HALF).astype(np.uint32).view(np.int32)


def _numbers(column: pa.Array) -> npt.NDArray[Any]:
    numbers: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return numbers
