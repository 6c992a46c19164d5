"""Kinds of Arrow types that have several widths or layouts."""

import pyarrow as pa
from pyarrow import types


def is_list(data_type: pa.DataType) -> bool:
    """Whether the type is one of Arrow's list types."""
    return bool(
        types.is_list(data_type)
        or types.is_large_list(data_type)
        or types.is_fixed_size_list(data_type)
    )


def is_list_view(data_type: pa.DataType) -> bool:
    """Whether the type is one of Arrow's list types whose items may be shared, or in another order."""
    return bool(types.is_list_view(data_type) or types.is_large_list_view(data_type))


def is_text(data_type: pa.DataType) -> bool:
    """Whether the type is one of Arrow's string types."""
    return bool(
        types.is_string(data_type)
        or types.is_large_string(data_type)
        or types.is_string_view(data_type)
    )


def is_bytes(data_type: pa.DataType) -> bool:
    """Whether the type is one of Arrow's binary types of any length."""
    return bool(
        types.is_binary(data_type)
        or types.is_large_binary(data_type)
        or types.is_binary_view(data_type)
    )
