"""Keys, sort keys and tables for tests of keyed state, with hashes weak enough to collide."""

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa

from holdfast.backends.keyed.table import Identities, TableSpec, time_part

GROUPS = 8

KEYS: dict[str, pa.Schema] = {
    "int": pa.schema([("k", pa.int64())]),
    "text": pa.schema([("k", pa.string())]),
    "float": pa.schema([("k", pa.float64())]),
    "two": pa.schema([("a", pa.int32()), ("b", pa.large_string())]),
    "nested": pa.schema([("k", pa.struct([("x", pa.int64()), ("y", pa.list_(pa.string()))]))]),
}


def key(number: int, kind: str) -> tuple[Any, ...]:
    """Return the key with a number: some are null, NaN or empty."""
    if kind == "int":
        return (number if number != 3 else None,)
    if kind == "text":
        return (None if number == 3 else "k" * (number % 3) + str(number),)
    if kind == "float":
        return (float("nan") if number == 3 else number / 4,)
    if kind == "two":
        return (number % 3, None if number == 5 else f"s{number // 3}")
    return ({"x": number % 2, "y": [str(number // 2)]},)


def key_group(number: int) -> int:
    """Return the key group of the key with a number."""
    return (number * 5 + 1) % GROUPS


def hash_of(value: object, *, bits: int, kept: int | None) -> int:
    """Return a hash of some bits; all except the first `kept` ones are 0."""
    mixed = crc32(repr(value).encode()) * 0x9E3779B97F4A7C15 & (1 << 64) - 1
    mixed >>= 64 - bits
    return mixed if kept is None else mixed >> bits - kept << bits - kept


def sort_key(number: int, weak: int | None, sub: object = None) -> int:
    """Return the sort key of the key with a number, or of one of its sub keys."""
    group = key_group(number) << 48
    if sub is None:
        return group | hash_of(number, bits=48, kept=weak)
    return group | hash_of(number, bits=24, kept=weak) << 24 | hash_of(sub, bits=24, kept=weak)


def timer_sort_key(number: int, time_ms: int) -> int:
    """Return the sort key of a timer of the key with a number."""
    part = int(time_part(np.array([time_ms]))[0])
    return key_group(number) << 48 | part | hash_of(number, bits=16, kept=None)


def identities(
    spec: TableSpec,
    kind: str,
    numbers: Sequence[int],
    sort_keys: Sequence[int],
    subs: Sequence[Any] = (),
) -> tuple[list[int], Identities]:
    """Return the order of the identities by sort key, and the identities in this order."""
    order = sorted(range(len(numbers)), key=lambda at: sort_keys[at])
    keys = [key(numbers[at], kind) for at in order]
    columns = [
        pa.array([parts[column] for parts in keys], field.type)
        for column, field in enumerate(spec.key)
    ]
    if len(spec.sub_key):
        columns.append(pa.array([subs[at] for at in order], spec.sub_key.field(0).type))
    ordered = np.array([sort_keys[at] for at in order], np.uint64)
    return order, Identities(ordered, tuple(columns))
