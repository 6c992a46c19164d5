"""Random types, values and rows. The edges of a type are drawn as often as all its other values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa
from pyarrow import types

DAY_US = 86_400_000_000
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31, the days that Python and Spark both have."""

ZONES = ("UTC", "Europe/Berlin", "America/St_Johns", "Pacific/Apia", "Asia/Kathmandu")

_TEXTS = [
    "",
    " ",
    "a",
    "A",
    "a ",
    "ä",
    "Ä",
    "a\u0308",
    "ß",
    "ss",
    "\0",
    "\uffff",
    "😀",
    "zz",
    "null",
]
_TEXTS += ["NaN", "x" * 70, '"', "\n"]
_BYTES = [b"", b"\0", b"\0\0", b"\xff", b"a", b"a\0", b"\x80abc", bytes(range(40))]
_FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1024.25, math.inf, -math.inf, math.nan]
_DAYS = [FIRST_DAY, LAST_DAY, -1, 0, 1, -25_567, 20_541, 20_751]
_MICROS = [
    FIRST_DAY * DAY_US,
    (LAST_DAY + 1) * DAY_US - 1,
    -1,
    0,
    1,
    -1_000_001,
    1_774_746_000_000_000,  # 2026-03-29T01:00Z, when the clocks of Berlin go forward
    1_792_890_000_000_000,  # 2026-10-25T01:00Z, when they go back
    1_792_886_400_000_000,  # 00:00Z: 02:00 in Berlin, for the first time that night
    1_325_239_200_000_000,  # 2011-12-30T10:00Z, the end of a day that Apia skipped
]


@dataclass(frozen=True, slots=True)
class Drawer:
    """Draws types and values.

    Attributes:
        random: The source of chance.
        has_void: Whether types may have void inside; PySpark can't make DataFrames of all of those.
        days: The first and the last day of timestamps, counted from 1970-01-01.
    """

    random: Random
    has_void: bool = True
    days: tuple[int, int] = (FIRST_DAY, LAST_DAY)

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.random.random() < probability

    def spark_type(self, depth: int = 2) -> pa.DataType:
        """Draw a type that Spark has, nested up to a depth."""
        choose = self.random
        if depth and self.chance(0.25):
            kind = choose.choice(["list", "struct", "map"])
            if kind == "list":
                return pa.list_(self.spark_type(depth - 1))
            if kind == "map":
                return pa.map_(self.key_type(), self.spark_type(depth - 1))
            count = choose.randint(1, 3)
            return pa.struct([(f"f{i}", self.spark_type(depth - 1)) for i in range(count)])
        if self.has_void and self.chance(0.03):
            return pa.null()
        return self.atomic_type()

    def arrow_type(self, depth: int = 2) -> pa.DataType:
        """Draw any type of Arrow that a state can have."""
        if self.chance(0.5):
            return self.spark_type(depth)
        return self.random.choice(
            [
                pa.uint8(),
                pa.uint16(),
                pa.uint32(),
                pa.uint64(),
                pa.timestamp("s"),
                pa.timestamp("ms", "UTC"),
                pa.timestamp("ns"),
                pa.timestamp("us", "Europe/Berlin"),
                pa.duration("s"),
                pa.duration("ms"),
                pa.time32("s"),
                pa.time64("us"),
                pa.large_string(),
                pa.large_binary(),
                pa.binary(3),
                pa.dictionary(pa.int32(), pa.string()),
                pa.large_list(pa.int32()),
                pa.list_(self.decimal_type()),
                pa.map_(pa.string(), self.decimal_type()),
                pa.struct([("x", self.decimal_type()), ("y", pa.timestamp("us", "UTC"))]),
            ]
        )

    def atomic_type(self) -> pa.DataType:
        """Draw a type of Spark that is neither nested nor void."""
        return self.random.choice(
            [
                pa.bool_(),
                pa.int8(),
                pa.int16(),
                pa.int32(),
                pa.int64(),
                pa.int64(),
                pa.float32(),
                pa.float64(),
                self.decimal_type(),
                self.decimal_type(),
                pa.string(),
                pa.string(),
                pa.binary(),
                pa.date32(),
                pa.timestamp("us", "UTC"),
                pa.timestamp("us"),
                pa.duration("us"),
            ]
        )

    def decimal_type(self) -> pa.DataType:
        """Draw a type of decimals, often of 38 digits."""
        digits = self.random.choice([1, 9, 18, 19, 28, 29, 37, 38, 38, 38])
        return pa.decimal128(digits, self.random.choice([0, digits // 2, digits]))

    def number_type(self) -> pa.DataType:
        """Draw a type that can be summed up."""
        wholes = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.int64()]
        return self.random.choice([*wholes, pa.float32(), pa.float64(), *[self.decimal_type()] * 4])

    def key_type(self) -> pa.DataType:
        """Draw a type whose values can be keys."""
        return self.atomic_type()

    def value(self, kind: pa.DataType, *, null: float = 0.15) -> Any:
        """Draw a plain value of a type; null with this probability, at each level."""
        if types.is_null(kind) or self.chance(null):
            return None
        choose = self.random
        if types.is_boolean(kind):
            return self.chance(0.5)
        if types.is_integer(kind):
            bits = kind.bit_width
            low, high = (0, 2**bits - 1) if types.is_unsigned_integer(kind) else _limits(bits)
            return self._number(low, high)
        if types.is_decimal(kind):
            return self._number(1 - 10**kind.precision, 10**kind.precision - 1)
        if types.is_floating(kind):
            return choose.choice(_FLOATS)
        if types.is_string(kind) or types.is_large_string(kind):
            return choose.choice(_TEXTS)
        if types.is_fixed_size_binary(kind):
            return choose.randbytes(kind.byte_width)
        if types.is_binary(kind) or types.is_large_binary(kind):
            return choose.choice(_BYTES)
        if types.is_date32(kind):
            return choose.choice([*_DAYS, choose.randint(FIRST_DAY, LAST_DAY)])
        if types.is_time(kind):
            return choose.choice([0, 1, 3600])
        if types.is_temporal(kind):
            return self._temporal(kind)
        if types.is_dictionary(kind):
            return self.value(kind.value_type, null=0)
        if types.is_struct(kind):
            return {field.name: self.value(field.type) for field in kind}
        if types.is_map(kind):
            keys = [self.value(kind.key_type, null=0) for _ in range(choose.randint(0, 3))]
            distinct = {order_text(key): key for key in keys}
            return [(key, self.value(kind.item_type)) for key in distinct.values()]
        return [self.value(kind.value_type) for _ in range(choose.choice([0, 1, 1, 2, 4]))]

    def values(self, kind: pa.DataType, count: int) -> list[Any]:
        """Draw values of a type."""
        return [self.value(kind) for _ in range(count)]

    def distinct_keys(self, key: pa.Schema, count: int) -> list[tuple[Any, ...]]:
        """Draw some keys; some of them may be equal."""
        return [tuple(self.value(field.type) for field in key) for _ in range(count)]

    def _number(self, low: int, high: int) -> int:
        choose = self.random
        small = choose.randint(max(low, -9), min(high, 9))
        edges = [low, high, max(low, -1), 0, min(high, 1), high // 2, high // 2 + 1]
        return choose.choice([small, small, choose.choice(edges), choose.randint(low, high)])

    def _temporal(self, kind: pa.DataType) -> int:
        choose = self.random
        if types.is_duration(kind):
            # Python has no longer ones in seconds.
            longest = 10**15 if kind.unit == "us" else 10**12
            return choose.choice([0, 1, -1, 1_000_000, -DAY_US, longest, choose.randint(0, 10**12)])
        micros = choose.choice([*_MICROS, choose.randint(_MICROS[0], _MICROS[1])])
        micros = min(max(micros, self.days[0] * DAY_US), (self.days[1] + 1) * DAY_US - 1)
        if kind.tz not in {None, "UTC"}:  # Python has no first and last hours there
            micros = min(max(micros, _MICROS[0] + DAY_US), _MICROS[1] - DAY_US)
        return {"s": micros // 10**6, "ms": micros // 1000, "us": micros}.get(
            kind.unit, choose.choice([0, -1, 1, 10**18])
        )


def order_text(value: Any) -> str:
    """Return a string that identifies a map key; zeros of both signs are equal."""
    return repr(value + 0.0 if isinstance(value, float) else value)


def _limits(bits: int) -> tuple[int, int]:
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def columns_of(rows: Sequence[Sequence[Any]], schema: pa.Schema, convert: Any) -> list[pa.Array]:
    """Return the columns of plain rows."""
    return [convert([row[index] for row in rows], field.type) for index, field in enumerate(schema)]
