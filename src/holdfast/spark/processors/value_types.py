"""Values of Spark's types: as processors give them, as processors get them back, and as columns.

What a processor gives is made what it will get back at once (`canonical`): state that was written in this batch looks
like state of a batch before. Spark stores null, another number or half of a text where a value is of another type;
here it is refused.
"""

import datetime as dt
import decimal
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql import types as spark

from holdfast.errors import InvalidRequestError
from holdfast.spark.processors.column_objects import objects_of
from holdfast.spark.processors.rows import row_maker

_Time = TypeVar("_Time", dt.date, dt.datetime, dt.timedelta)

_DECIMALS = decimal.Context(prec=76, rounding=decimal.ROUND_HALF_UP)


class NoValueError(Exception):
    """An object is no value of the type.

    Args:
        value: The object.
        type_name: What it should be.
        path: Where it is inside of what was given: names of fields, from the inside.
    """

    def __init__(self, value: Any, type_name: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(value, type_name, path)
        self.value = value
        self.type_name = type_name
        self.path = path

    def inside(self, field: str) -> "NoValueError":
        """The same error, of what the value is a part of."""
        return NoValueError(self.value, self.type_name, (*self.path, field))

    def __str__(self) -> str:
        where = f"field {'.'.join(reversed(self.path))!r} " if self.path else "it "
        return f"{where}has type {self.type_name}, and was given {self.value!r} of type {type(self.value).__name__}"


class ValueType:
    """A type whose values are Python's own, immutable, and nothing but what Arrow makes of the column.

    Attributes:
        arrow: The type of columns.
        name: What Spark calls the type.
        is_immutable: Whether what processors get may be handed out without a copy.
    """

    is_immutable = True

    def __init__(self, arrow: pa.DataType, name: str) -> None:
        self.arrow = arrow
        self.name = name

    def canonical(self, value: Any) -> Any:
        """What a processor will get for what it gives; None for None. Raises `NoValueError`."""
        raise NotImplementedError

    def column(self, values: list[Any]) -> pa.Array:
        """The column of canonical values."""
        column = pa.array(values, self.arrow)
        return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column

    def objects(self, column: pa.Array) -> list[Any]:
        """The canonical values of a column."""
        return objects_of(column)

    def copied(self, value: Any) -> Any:
        """A copy that a processor may change."""
        return value

    def hashable(self, value: Any) -> Any:
        """What dictionaries can look up: equal where canonical values are."""
        return value


def _plain(value: Any) -> Any:
    """A scalar of numpy or pandas as Python's own."""
    if isinstance(value, np.generic):
        return value.tolist()
    for method in ("to_pytimedelta", "to_pydatetime"):
        if hasattr(value, method):
            return getattr(value, method)()
    return value


class _TimeType(ValueType):
    """A type whose values are times of some class of `datetime`."""

    def _time(self, value: Any, kind: type[_Time]) -> _Time:
        """The value as an object of the class. Raises `NoValueError`, for NaT, too."""
        time = _plain(value)
        if not isinstance(time, kind) or time != time:  # noqa: PLR0124  # NaT
            raise NoValueError(value, self.name)
        return time


class _Integers(ValueType):
    def __init__(self, arrow: pa.DataType, name: str) -> None:
        super().__init__(arrow, name)
        self._least, self._most = -(1 << arrow.bit_width - 1), (1 << arrow.bit_width - 1) - 1

    def canonical(self, value: Any) -> Any:
        if type(value) is not int:
            if value is None:
                return None
            number = _plain(value)
            if isinstance(number, bool) or not isinstance(number, int):
                raise NoValueError(value, self.name)
            value = int(number)
        if not self._least <= value <= self._most:
            raise NoValueError(value, self.name)
        return value


class _Floats(ValueType):
    def canonical(self, value: Any) -> Any:
        if type(value) is not float:
            if value is None:
                return None
            number = _plain(value)
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise NoValueError(value, self.name)
            try:
                value = float(number)
            except OverflowError:
                raise NoValueError(value, self.name) from None
        if self.arrow.bit_width == 64:
            return value
        with np.errstate(over="ignore"):  # as in Spark: what is too large is infinite
            return float(np.float32(value))

    def hashable(self, value: Any) -> Any:
        return math.nan if value is not None and math.isnan(value) else value


class _Booleans(ValueType):
    def canonical(self, value: Any) -> Any:
        if value is None or type(value) is bool:
            return value
        flag = _plain(value)
        if not isinstance(flag, bool):
            raise NoValueError(value, self.name)
        return flag


class _Strings(ValueType):
    def canonical(self, value: Any) -> Any:
        if value is None or type(value) is str:
            return value
        text = _plain(value)
        if isinstance(text, int) and not isinstance(text, bool):
            return str(int(text))  # as Spark does
        if not isinstance(text, str):
            raise NoValueError(value, self.name)
        return str(text)


class _Binaries(ValueType):
    def canonical(self, value: Any) -> Any:
        if value is None or type(value) is bytes:
            return value
        if isinstance(value, str):
            return value.encode()  # as Spark does
        if not isinstance(value, bytes | bytearray | memoryview):
            raise NoValueError(value, self.name)
        return bytes(value)


class _Dates(_TimeType):
    def canonical(self, value: Any) -> Any:
        if value is None or type(value) is dt.date:
            return value
        date = self._time(value, dt.date)
        return dt.date(date.year, date.month, date.day)


class _Timestamps(_TimeType):
    """Instants; processors get them without a zone, as the clocks of the worker's zone show them."""

    def canonical(self, value: Any) -> Any:
        if value is None:
            return None
        return _local(_instant(self._time(value, dt.datetime)))

    def column(self, values: list[Any]) -> pa.Array:
        numbers = [None if value is None else _instant(value) for value in values]
        return pa.array(numbers, pa.int64()).view(self.arrow)

    def objects(self, column: pa.Array) -> list[Any]:
        numbers = objects_of(column.view(pa.int64()))
        return [None if number is None else _local(number) for number in numbers]


def _instant(time: dt.datetime) -> int:
    """Microseconds since 1970; a time without a zone is one of the process's zone."""
    return int(time.replace(microsecond=0).timestamp()) * 1_000_000 + time.microsecond


def _local(instant: int) -> dt.datetime:
    seconds, microseconds = divmod(instant, 1_000_000)
    return dt.datetime.fromtimestamp(seconds).replace(microsecond=microseconds)  # noqa: DTZ006


class _LocalTimestamps(_TimeType):
    def canonical(self, value: Any) -> Any:
        if value is None:
            return None
        return self._time(value, dt.datetime).replace(tzinfo=None)


class _Decimals(ValueType):
    def __init__(self, arrow: pa.DataType, name: str) -> None:
        super().__init__(arrow, name)
        self._unit = decimal.Decimal(1).scaleb(-arrow.scale)

    def canonical(self, value: Any) -> Any:
        if value is None:
            return None
        number = _plain(value)
        if isinstance(number, int) and not isinstance(number, bool):
            number = decimal.Decimal(number)
        if not isinstance(number, decimal.Decimal) or not number.is_finite():
            raise NoValueError(value, self.name)
        try:
            number = number.quantize(self._unit, context=_DECIMALS)
        except decimal.InvalidOperation:
            raise NoValueError(value, self.name) from None
        if len(number.as_tuple().digits) > self.arrow.precision:
            raise NoValueError(value, self.name)
        return number


class _Durations(_TimeType):
    def canonical(self, value: Any) -> Any:
        if value is None or type(value) is dt.timedelta:
            return value
        return self._time(value, dt.timedelta)


class _Nulls(ValueType):
    def canonical(self, value: Any) -> Any:
        if value is not None:
            raise NoValueError(value, self.name)


class _Arrays(ValueType):
    is_immutable = False

    def __init__(self, element: ValueType, name: str) -> None:
        super().__init__(pa.list_(element.arrow), name)
        self._element = element

    def canonical(self, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if not isinstance(value, list | tuple):
            raise NoValueError(value, self.name)
        try:
            return list(map(self._element.canonical, value))
        except NoValueError as error:
            raise error.inside("element") from None

    def column(self, values: list[Any]) -> pa.Array:
        offsets, mask = _offsets(values)
        elements = self._element.column([each for value in values if value for each in value])
        return pa.ListArray.from_arrays(offsets, elements, type=self.arrow, mask=mask)

    def objects(self, column: pa.Array) -> list[Any]:
        elements = self._element.objects(column.values)
        return _cut(column, elements)

    def copied(self, value: Any) -> Any:
        return None if value is None else list(map(self._element.copied, value))

    def hashable(self, value: Any) -> Any:
        return None if value is None else tuple(map(self._element.hashable, value))


class _Maps(ValueType):
    is_immutable = False

    def __init__(self, key: ValueType, item: ValueType, name: str) -> None:
        super().__init__(pa.map_(key.arrow, item.arrow), name)
        self._key, self._item = key, item

    def canonical(self, value: Any) -> Any:
        if value is None:
            return None
        try:
            pairs = dict(value).items()
        except (TypeError, ValueError):
            raise NoValueError(value, self.name) from None
        try:
            entries = {self._key.canonical(key): self._item.canonical(item) for key, item in pairs}
        except NoValueError as error:
            raise error.inside("entry") from None
        if None in entries:
            raise NoValueError(value, self.name)
        return entries

    def column(self, values: list[Any]) -> pa.Array:
        offsets, mask = _offsets(values)
        keys = self._key.column([key for value in values if value for key in value])
        items = self._item.column([item for value in values if value for item in value.values()])
        return pa.MapArray.from_arrays(offsets, keys, items, type=self.arrow, mask=mask)

    def objects(self, column: pa.Array) -> list[Any]:
        pairs = list(
            zip(self._key.objects(column.keys), self._item.objects(column.items), strict=True)
        )
        maps = _cut(column, pairs)
        return [None if entries is None else dict(entries) for entries in maps]

    def copied(self, value: Any) -> Any:
        if value is None:
            return None
        return {self._key.copied(key): self._item.copied(item) for key, item in value.items()}

    def hashable(self, value: Any) -> Any:
        if value is None:
            return None
        hashable_key, hashable_item = self._key.hashable, self._item.hashable
        return frozenset((hashable_key(key), hashable_item(item)) for key, item in value.items())


class Structs(ValueType):
    """Values of several fields: those of a state variable are plain tuples, those inside of others are rows."""

    def __init__(self, names: Sequence[str], fields: Sequence[ValueType], name: str) -> None:
        arrow = pa.struct(
            [pa.field(n, field.arrow) for n, field in zip(names, fields, strict=True)]
        )
        super().__init__(arrow, name)
        self.names = list(names)
        self.fields = tuple(fields)
        self.is_immutable = all(field.is_immutable for field in fields)
        self.row: Callable[[Any], Any] = row_maker(names)
        self._canonicals = [field.canonical for field in fields]
        self.is_hashed_as_it_is = all(
            type(field).hashable is ValueType.hashable for field in fields
        )

    def values(self, given: Sequence[Any]) -> tuple[Any, ...]:
        """The canonical values of as many fields. Raises `NoValueError`."""
        try:
            return tuple([make(part) for make, part in zip(self._canonicals, given, strict=True)])
        except NoValueError:
            for name, make, part in zip(self.names, self._canonicals, given, strict=True):
                try:
                    make(part)
                except NoValueError as error:
                    raise error.inside(name) from None
            raise

    def array(self, values: Sequence[Sequence[Any] | None]) -> pa.StructArray:
        """The column of canonical values; null for None."""
        mask = None
        if None in values:
            mask = pa.array([value is None for value in values])
            nothing = (None,) * len(self.fields)
            values = [nothing if value is None else value for value in values]
        if not self.fields:
            return pa.array(
                [{}] * len(values), self.arrow, mask=None if mask is None else np.array(mask)
            )
        parts = zip(*values, strict=True) if values else ((),) * len(self.fields)
        columns = [field.column(list(part)) for field, part in zip(self.fields, parts, strict=True)]
        return pa.StructArray.from_arrays(columns, fields=list(self.arrow), mask=mask)

    def tuples(self, column: pa.StructArray) -> list[tuple[Any, ...]]:
        """The values of a column, as plain tuples; of what is null they don't matter."""
        if not self.fields:
            return [()] * len(column)
        parts = [field.objects(column.field(at)) for at, field in enumerate(self.fields)]
        return list(zip(*parts, strict=True))

    def canonical(self, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, Mapping):
            value = tuple(value.get(name) for name in self.names)
        if not isinstance(value, tuple | list) or len(value) != len(self.fields):
            raise NoValueError(value, self.name)
        return self.row(self.values(value))

    def column(self, values: list[Any]) -> pa.Array:
        return self.array(values)

    def objects(self, column: pa.Array) -> list[Any]:
        rows = list(map(self.row, self.tuples(column)))
        if column.null_count:
            for index in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
                rows[index] = None
        return rows

    def copied(self, value: Any) -> Any:
        if value is None or self.is_immutable:
            return value
        return self.row(self.copied_values(value))

    def copied_values(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """A copy of the values of all fields."""
        return tuple([field.copied(part) for field, part in zip(self.fields, values, strict=True)])

    def hashable(self, value: Any) -> Any:
        if value is None or self.is_hashed_as_it_is:
            return value
        return tuple([field.hashable(part) for field, part in zip(self.fields, value, strict=True)])


def _offsets(values: list[Any]) -> tuple[pa.Array, pa.Array | None]:
    lengths = [len(value) if value else 0 for value in values]
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    mask = pa.array([value is None for value in values]) if None in values else None
    return pa.array(offsets, pa.int32()), mask


def _cut(column: pa.Array, elements: list[Any]) -> list[Any]:
    offsets = column.offsets.to_pylist()
    lists: list[Any] = [elements[first:end] for first, end in itertools.pairwise(offsets)]
    if column.null_count:
        for index in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            lists[index] = None
    return lists


_SIMPLE: dict[type[spark.DataType], tuple[type[ValueType], pa.DataType]] = {
    spark.ByteType: (_Integers, pa.int8()),
    spark.ShortType: (_Integers, pa.int16()),
    spark.IntegerType: (_Integers, pa.int32()),
    spark.LongType: (_Integers, pa.int64()),
    spark.FloatType: (_Floats, pa.float32()),
    spark.DoubleType: (_Floats, pa.float64()),
    spark.BooleanType: (_Booleans, pa.bool_()),
    spark.StringType: (_Strings, pa.string()),
    spark.CharType: (_Strings, pa.string()),
    spark.VarcharType: (_Strings, pa.string()),
    spark.BinaryType: (_Binaries, pa.binary()),
    spark.DateType: (_Dates, pa.date32()),
    spark.TimestampType: (_Timestamps, pa.timestamp("us", "UTC")),
    spark.TimestampNTZType: (_LocalTimestamps, pa.timestamp("us")),
    spark.DayTimeIntervalType: (_Durations, pa.duration("us")),
    spark.NullType: (_Nulls, pa.null()),
}


def value_type(kind: spark.DataType) -> ValueType:
    """What values of a type of Spark's are.

    Raises:
        InvalidRequestError: State and output can't have the type, or a struct has two fields of a name.
    """
    if isinstance(kind, spark.StructType):
        return struct_type(kind)
    if isinstance(kind, spark.ArrayType):
        return _Arrays(value_type(kind.elementType), kind.simpleString())
    if isinstance(kind, spark.MapType):
        return _Maps(value_type(kind.keyType), value_type(kind.valueType), kind.simpleString())
    if isinstance(kind, spark.DecimalType):
        return _Decimals(pa.decimal128(kind.precision, kind.scale), kind.simpleString())
    known = _SIMPLE.get(type(kind))
    if known is None:
        message = (
            f"values of Spark's type {kind.simpleString()} can't be kept; cast them to another type"
        )
        raise InvalidRequestError(message)
    make, arrow = known
    return make(arrow, kind.simpleString())


def struct_type(kind: spark.StructType) -> Structs:
    """The same for a struct."""
    return _struct_type(kind.json())


@lru_cache(maxsize=256)
def _struct_type(text: str) -> Structs:
    kind = spark.StructType.fromJson(json.loads(text))
    repeated = sorted({name for name in kind.names if kind.names.count(name) > 1})
    if repeated:
        message = f"a struct has two fields of the name {repeated[0]!r}: {kind.simpleString()}"
        raise InvalidRequestError(message)
    fields = [value_type(field.dataType) for field in kind.fields]
    return Structs(kind.names, fields, kind.simpleString())
