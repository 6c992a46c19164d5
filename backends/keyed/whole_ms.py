"""Times that users give, as they are stored."""

import operator

from holdfast.common import MAX_INT64
from holdfast.errors import InvalidRequestError

LEAST_MS = -MAX_INT64 - 1
"""The earliest time."""


def whole_ms(time_ms: int) -> int:
    """The time, a whole number of milliseconds in 64 bits. Raises `InvalidRequestError` for what is none."""
    try:
        number = operator.index(time_ms)
    except TypeError:
        number = None
    if number is None or not LEAST_MS <= number <= MAX_INT64:
        message = (
            f"a time is a whole number of milliseconds since 1970, in 64 bits, and not {time_ms!r}"
        )
        raise InvalidRequestError(message)
    return number
