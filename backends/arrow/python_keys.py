"""Python objects of Arrow values as keys of dictionaries: equal, and with the same hash, exactly where Arrow's values are equal.

Python disagrees with Arrow twice: NaN differs from itself, and two datetimes of one zone are equal if their clocks show
the same, even an hour apart at the end of daylight saving time.
"""

import datetime as dt
import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyarrow import types

from holdfast.backends.arrow.nesting import plain_type


def dictionary_key(type: pa.DataType) -> Callable[[Any], Any] | None:
    """The function that makes a dictionary's key of a type's Python object; None if the object itself is one.

    Args:
        type: The values' type. Of nested types only the hash of objects decides, if they have one.
    """
    plain = plain_type(type)
    if types.is_floating(plain):
        return _single_nan
    if types.is_timestamp(plain) and plain.tz is not None:
        return _unambiguous
    return None


def _single_nan(value: Any) -> Any:
    """The number; the same object for every NaN."""
    return math.nan if value != value else value  # noqa: PLR0124  # NaN alone differs from itself


def _unambiguous(value: Any) -> Any:
    """The instant, which differs from every other instant: a second 02:30 of a day has its offset in place of its zone."""
    if isinstance(value, dt.datetime) and value.fold:
        return value.replace(tzinfo=dt.timezone(value.utcoffset() or dt.timedelta()), fold=0)
    return value
