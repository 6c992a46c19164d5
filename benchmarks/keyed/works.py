"""The workloads: keys, their types, and the batches that every engine reads from the same files."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Longs = npt.NDArray[np.int64]

KEY_TYPES = {"integers": pa.int64(), "strings": pa.string()}
KEY_GROUPS = 128
SPREADS = ("uniform", "zipf")

_ZIPF = 0.99
"""The exponent of YCSB's skewed loads."""
_MIX = 0x9E3779B97F4A7C15
_LETTERS = np.frombuffer(b"abcdefghijklmnop", np.uint8)
_PRIMES = (1_000_003, 999_999_937)


@dataclass(frozen=True, slots=True)
class Work:
    """A state of some keys, and batches of rows that belong to them.

    Attributes:
        keys: How many keys the state has before the first batch.
        type: `integers` of 64 bits, or `strings` of 16 letters.
        spread: `uniform`, or `zipf`, where a few keys have most rows.
        rows: How many rows each batch has.
    """

    keys: int
    type: str
    spread: str
    rows: int

    @property
    def title(self) -> str:
        """The work in a few words."""
        return f"{short(self.keys)} keys, {self.type}, {self.spread}"


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows: a key and a value each."""

    keys: pa.Array
    values: Longs


class Batches:
    """The batches of a work, each a file of numbers of keys and of values.

    Args:
        work: The work that the batches are of.
        directory: Where the files go.
    """

    def __init__(self, work: Work, directory: Path) -> None:
        self._work = work
        self._directory = directory
        self._random = np.random.default_rng(7)
        self._number = 0
        self._shares: npt.NDArray[np.float64] | None = None

    def write(self) -> Path:
        """One more batch."""
        return self.write_rows(self._keys(), self._random.integers(0, 1000, self._work.rows))

    def write_distinct(self) -> Path:
        """One more batch where no key comes twice."""
        keys = np.unique(self._keys())
        return self.write_rows(self._random.permutation(keys), np.ones(len(keys), np.int64))

    def write_rows(self, keys: Longs, values: Longs) -> Path:
        """A batch of these rows."""
        self._number += 1
        path = self._directory / f"batch-{self._number}"
        np.concatenate([keys, values]).astype("<i8").tofile(path)
        return path

    def _keys(self) -> Longs:
        work = self._work
        if work.spread == "uniform":
            return self._random.integers(0, work.keys, work.rows)
        if self._shares is None:
            weights = np.arange(1, work.keys + 1, dtype=np.float64) ** -_ZIPF
            self._shares = np.cumsum(weights / weights.sum())
        ranks = np.searchsorted(self._shares, self._random.random(work.rows))
        return np.minimum(ranks, work.keys - 1) * _prime_to(work.keys) % work.keys


def _prime_to(count: int) -> int:
    return next(prime for prime in _PRIMES if count % prime)


def numbers_of(path: Path) -> tuple[Longs, Longs]:
    """The numbers of keys, and the values, of a batch's rows."""
    numbers = np.fromfile(path, "<i8")
    half = len(numbers) // 2
    return numbers[:half], numbers[half:]


def batch_of(path: Path, type: str) -> Batch:
    """A batch with keys of their type."""
    numbers, values = numbers_of(path)
    return Batch(keys_of(numbers, type), values)


def keys_of(numbers: Longs, type: str) -> pa.Array:
    """The keys of these numbers."""
    if type == "integers":
        return pa.array(numbers)
    mixed = (numbers.astype(np.uint64) * np.uint64(_MIX)).astype(">u8")
    octets = mixed.view(np.uint8).reshape(-1, 8)
    letters = np.empty((len(numbers), 16), np.uint8)
    letters[:, 0::2] = _LETTERS[octets >> 4]
    letters[:, 1::2] = _LETTERS[octets & 15]
    ends = np.arange(len(numbers) + 1, dtype=np.int32) * 16
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(ends), pa.py_buffer(letters))


def all_keys(
    count: int, type: str, step: int = 1_000_000, *, in_order: bool = True
) -> Iterator[Batch]:
    """Yield batches of `step` keys, each key once with its number as value; the keys of a batch are scattered unless `in_order`."""
    prime = 1 if in_order else _prime_to(count)
    for begin in range(0, count, step):
        numbers = np.sort(np.arange(begin, min(count, begin + step)) * prime % count)
        yield Batch(keys_of(numbers, type), numbers)


def short(count: float) -> str:
    """A number that can be read at a glance."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count:.3g}"


def totals_of(batch: Any) -> Any:
    """Rows and the sum of values by key: a table of `key`, `value_count` and `value_sum`."""
    rows = pa.table({"key": batch.keys, "value": batch.values})
    grouped = rows.group_by("key", use_threads=False)
    return grouped.aggregate([("value", "count"), ("value", "sum")]).combine_chunks()
