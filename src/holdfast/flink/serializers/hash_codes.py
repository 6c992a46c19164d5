"""Java's hash codes of keys, by columns: Flink has made key groups of them.

Classes of the job have a `hashCode` of their own, which nobody knows here; so only keys of these types can be compared
with the key groups that they stand in.

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
    """Hash codes of whole numbers of at most 32 bits."""
    return _numbers(column).astype(np.int32)


def of_longs(column: pa.Array) -> Codes:
    """Hash codes of whole numbers of 64 bits."""
    return _halves(_numbers(column).view(np.uint64))


def of_booleans(column: pa.Array) -> Codes:
    """Hash codes of truth values."""
    return np.where(_numbers(column), 1231, 1237).astype(np.int32)


def of_floats(column: pa.Array) -> Codes:
    """Hash codes of numbers with a point, of 32 or 64 bits. Java has one NaN, and 0.0 isn't -0.0."""
    numbers = _numbers(column)
    numbers = np.where(np.isnan(numbers), np.nan, numbers).astype(numbers.dtype)
    if numbers.dtype == np.float32:
        return numbers.view(np.int32)
    return _halves(numbers.view(np.uint64))


def of_texts(column: pa.Array) -> Codes:
    """Hash codes of texts."""
    codes = [0 if text is None else java_hash(text) for text in column.to_pylist()]
    return np.array(codes, np.int32)


def of_tuples(fields: "Sequence[HashCodes]") -> "HashCodes":
    """What gives those of tuples, by what gives those of their fields."""

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
