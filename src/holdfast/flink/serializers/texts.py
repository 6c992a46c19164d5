"""Strings in Flink's format, read one by one or many at once.

    string  varint: number of UTF-16 code units plus one, 0 for null; then a varint for each unit

A varint has seven bits a byte, the low ones first.

Source:
    Flink, org.apache.flink.types.StringValue (2.3.0).
"""

from array import array
from sys import byteorder

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.flink.serializers.serializer import Numbers, Packed

_MORE = 0x80
_UNIT_BYTES, _LENGTH_BYTES = 3, 5
_HIGH, _LOW, _AFTER_LOW = 0xD800, 0xDC00, 0xE000  # bounds of high and low surrogates
_UTF_16 = "utf-16-le" if byteorder == "little" else "utf-16-be"


def read_string(data: bytes, position: int) -> tuple[str | None, int]:
    """Read a string; returns it with the next position. Raises ValueError and IndexError."""
    length = data[position]
    position += 1
    if length > 0x7F:
        length, position = _length(data, position - 1)
    if not length:
        return None, position
    return _units(data, position, length - 1)


def read_string_value(data: bytes, position: int) -> tuple[str, int]:
    """Read a string of `StringValue`, which can't be null. Raises ValueError and IndexError."""
    length, position = _length(data, position)
    return _units(data, position, length)


def _units(data: bytes, position: int, length: int) -> tuple[str, int]:
    """Decode `length` UTF-16 code units; returns the string with the next position."""
    end = position + length
    units = data[position:end]
    if units.isascii() and len(units) == length:
        return units.decode("ascii"), end
    if length > len(data) - position:
        message = f"a string of {length} characters can't fit into {len(data) - position} bytes"
        raise ValueError(message)
    wide = array("H")
    append = wide.append
    for _ in range(length):
        unit = data[position]
        position += 1
        if unit >= _MORE:
            second = data[position]
            position += 1
            unit = unit & 0x7F | (second & 0x7F) << 7
            if second >= _MORE:
                third = data[position]
                position += 1
                if third > 3:
                    message = "a string has a character of more than 16 bits"
                    raise ValueError(message)
                unit |= third << 14
        append(unit)
    return wide.tobytes().decode(_UTF_16), position  # rejects lone surrogates


def _length(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 7 * _LENGTH_BYTES, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < _MORE:
            return value, position
    message = "the length of a string has more than 32 bits"
    raise ValueError(message)


def text_column(texts: Packed) -> pa.Array | None:
    """Decode strings to a column, or return None if `read_string` would reject one."""
    data, lengths = texts.data, texts.lengths
    ends = np.cumsum(lengths)
    starts = ends - lengths
    if not len(data) or not lengths.all():
        return None
    is_last = data < _MORE  # last byte of a varint
    first = data[starts]
    if is_last.all() and (first == lengths).all():  # only ASCII, without null
        is_unit = np.ones(len(data), bool)
        is_unit[starts] = False
        return _strings(lengths - 1, data[is_unit])
    return _wide_column(texts, starts, ends, is_last)


def _wide_column(
    texts: Packed, starts: Numbers, ends: Numbers, is_last: npt.NDArray[np.bool_]
) -> pa.Array | None:
    data = texts.data
    if not is_last[ends - 1].all():
        return None
    last = np.flatnonzero(is_last)
    sizes = np.diff(last, prepend=-1)
    begin = last - sizes + 1
    numbers = (data[begin] & 0x7F).astype(np.int64)
    longest = int(sizes.max())
    if longest > _LENGTH_BYTES:
        return None
    for place in range(1, longest):
        longer = np.flatnonzero(sizes > place)
        numbers[longer] |= (data[begin[longer] + place] & 0x7F).astype(np.int64) << 7 * place
    heads = np.searchsorted(begin, starts)  # index of each string's length among all numbers
    counts = np.diff(heads, append=len(numbers)) - 1
    is_null = numbers[heads] == 0
    if (numbers[heads] - 1 + is_null != counts).any():
        return None
    is_unit = np.ones(len(numbers), bool)
    is_unit[heads] = False
    units, widths = numbers[is_unit], sizes[is_unit]
    if len(units) and (widths.max() > _UNIT_BYTES or units.max() > 0xFFFF):
        return None
    utf8_bytes = 1 + (units >= 0x80) + (units >= 0x800)
    is_half = (units >= _HIGH) & (units < _AFTER_LOW)
    if is_half.any():
        if not _has_whole_pairs(units, np.cumsum(counts), counts):
            return None
        utf8_bytes[is_half] = 2
    next_units = np.concatenate(([0], np.cumsum(utf8_bytes)))
    edges = np.concatenate(([0], np.cumsum(counts)))
    content = units.astype(np.uint16).tobytes().decode(_UTF_16)
    utf8 = np.frombuffer(content.encode(), np.uint8)
    return _strings(np.diff(next_units[edges]), utf8, is_null if is_null.any() else None)


def _has_whole_pairs(units: Numbers, followers: Numbers, counts: Numbers) -> bool:
    """Return whether every high surrogate is followed by a low one in the same string, and vice versa."""
    is_high = (units >= _HIGH) & (units < _LOW)
    is_low = (units >= _LOW) & (units < _AFTER_LOW)
    last_units = followers[counts > 0] - 1
    if is_high[last_units].any() or is_low[0]:
        return False
    return bool((is_high[:-1] == is_low[1:]).all())


def _strings(
    lengths: Numbers, utf8: npt.NDArray[np.uint8], is_null: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > np.iinfo(np.int32).max:
        message = f"{offsets[-1]} bytes of strings can't fit into a column"
        raise OverflowError(message)
    validity = None
    if is_null is not None:
        validity = pa.array(~is_null).buffers()[1]
    buffers = [validity, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(utf8)]
    return pa.StringArray.from_buffers(len(lengths), *buffers[1:], buffers[0])
