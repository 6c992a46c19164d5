"""Numbers, truth values, texts and bytes."""

import decimal
import math
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.backends.arrow import is_valid_text
from holdfast.spark.processors.values.value_type import NoValueError, ValueType, plain

_DECIMALS = decimal.Context(prec=76, rounding=decimal.ROUND_HALF_UP)


class Integers(ValueType):
    def __init__(self, arrow: pa.DataType, name: str) -> None:
        super().__init__(arrow, name)
        self._least, self._most = -(1 << arrow.bit_width - 1), (1 << arrow.bit_width - 1) - 1

    def canonical(self, value: Any) -> Any:
        if type(value) is not int:
            if value is None:
                return None
            number = plain(value)
            if isinstance(number, bool) or not isinstance(number, int):
                raise NoValueError(value, self.name)
            value = int(number)
        if not self._least <= value <= self._most:
            raise NoValueError(value, self.name)
        return value


class Floats(ValueType):
    def canonical(self, value: Any) -> Any:
        if type(value) is not float:
            if value is None:
                return None
            number = plain(value)
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


class Booleans(ValueType):
    def canonical(self, value: Any) -> Any:
        if value is None or type(value) is bool:
            return value
        flag = plain(value)
        if not isinstance(flag, bool):
            raise NoValueError(value, self.name)
        return flag


class Strings(ValueType):
    def canonical(self, value: Any) -> Any:
        if value is None:
            return None
        text = value if type(value) is str else plain(value)
        if isinstance(text, int) and not isinstance(text, bool):
            return str(int(text))  # as Spark does
        if not isinstance(text, str) or not is_valid_text(text):
            raise NoValueError(value, self.name)
        return text if type(text) is str else str.__str__(text)


class Binaries(ValueType):
    def canonical(self, value: Any) -> Any:
        if value is None or type(value) is bytes:
            return value
        if isinstance(value, str) and is_valid_text(value):
            return value.encode()  # as Spark does
        if not isinstance(value, bytes | bytearray | memoryview):
            raise NoValueError(value, self.name)
        return bytes(value)


class Decimals(ValueType):
    def __init__(self, arrow: pa.DataType, name: str) -> None:
        super().__init__(arrow, name)
        self._unit = decimal.Decimal(1).scaleb(-arrow.scale)

    def canonical(self, value: Any) -> Any:
        if value is None:
            return None
        number = plain(value)
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
        return number or abs(number)  # the sign of a zero is not stored


class Nulls(ValueType):
    def canonical(self, value: Any) -> Any:
        if value is not None:
            raise NoValueError(value, self.name)
