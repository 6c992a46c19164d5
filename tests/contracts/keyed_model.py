"""States of the keyed state machine: their keys, their types, and a model of their content in dicts."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pyarrow as pa

from holdfast.backends.descriptors import StateTtlConfig

GROUPS = 8
KEY_COUNT = 40
TTL_MS = 10
TTL = StateTtlConfig(timedelta(milliseconds=TTL_MS))
WINDOW = pa.schema([("window", pa.int64())])
SUBS = ["", "x", "y", "zz"]

KEYS: dict[str, tuple[pa.Schema, Callable[[int], tuple[Any, ...]]]] = {
    "int": (pa.schema([("k", pa.int64())]), lambda n: (n if n != 3 else None,)),
    "text": (
        pa.schema([("k", pa.string())]),
        lambda n: (None if n == 3 else "k" * (n % 3) + str(n),),
    ),
    "float": (pa.schema([("k", pa.float64())]), lambda n: (float("nan") if n == 3 else n / 4,)),
    "two": (
        pa.schema([("a", pa.int32()), ("b", pa.string())]),
        lambda n: (n % 3, None if n == 5 else f"s{n // 3}"),
    ),
    "nested": (
        pa.schema([("k", pa.struct([("x", pa.int64()), ("y", pa.list_(pa.string()))]))]),
        lambda n: ({"x": n % 2, "y": [str(n // 2)]},),
    ),
}
ROWS = [
    pa.schema([("n", pa.int32())]),
    pa.schema([("n", pa.int64()), ("more", pa.string())]),
]
"""The type of `w`, in each version of the job."""
NUMBERS = [pa.int32(), pa.int64()]
"""The type of the elements of `l` and of the values of `m`."""


@dataclass
class Model:
    """Content of the states; keys are numbers, and values with a time to live have the time of their last change."""

    v: dict[int, tuple[int, int]] = field(default_factory=dict)
    w: dict[int, dict[str, Any]] = field(default_factory=dict)
    l: dict[int, list[int]] = field(default_factory=dict)  # noqa: E741
    lt: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    m: dict[int, dict[str, int]] = field(default_factory=dict)
    mt: dict[int, dict[str, tuple[int, int]]] = field(default_factory=dict)
    r: dict[int, tuple[int, int]] = field(default_factory=dict)
    rt: dict[int, tuple[int, int]] = field(default_factory=dict)
    a: dict[int, list[int]] = field(default_factory=dict)
    lw: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    t: set[tuple[int, int]] = field(default_factory=set)
