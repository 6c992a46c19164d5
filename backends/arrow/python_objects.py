"""The error for Arrow values of which Python has no object: times beyond its calendar, text that is not UTF-8."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from holdfast.errors import InvalidRequestError


def no_object_error(what: str, type: pa.DataType, why: str) -> InvalidRequestError:
    """The error for a value that has no object.

    Args:
        what: The value and its place, such as the name of a column.
        type: Its type.
        why: The reason, such as the name of Python's own error; no values.
    """
    message = (
        f"{what}: Python has no object for a value of type {type} ({why}); take it as Arrow data, or give it another "
        "type"
    )
    return InvalidRequestError(message)


@contextmanager
def named_conversion(what: str, type: pa.DataType) -> Iterator[None]:
    """Convert values between Arrow and Python inside; what fails is one error with the name of the values.

    Raises:
        InvalidRequestError: A value has no object.
    """
    try:
        yield
    except InvalidRequestError:
        raise
    except (ArithmeticError, LookupError, OSError, ValueError, pa.ArrowException) as error:
        raise no_object_error(what, type, error.__class__.__name__) from error
