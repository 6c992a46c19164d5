"""Tests that an older pyarrow can't run are skipped: it lacks their types, or can't compute with them."""

import re

import pyarrow as pa
import pytest

_VERSION = int(pa.__version__.split(".", maxsplit=1)[0])

HALF_FLOATS = [pa.float16()] if _VERSION >= 21 else []
"""The type, if Arrow takes floats of Python for it."""

# Files whose tables contain UUIDs, JSON, or views that are cast.
collect_ignore = [
    f"backends/test_{name}.py"
    for name in (
        "columnar_tables",
        "list_state_values",
        "table_reader",
        "trimming",
        "writing_states",
    )
    if _VERSION < 19
]

_NAMES = [
    *([] if HALF_FLOATS else ["halffloat"]),
    *(["_view", "(list|text|bytes) views?", "in_views", "uuid"] if _VERSION < 18 else []),
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests by the types in their names."""
    if _NAMES:
        skip = pytest.mark.skip(reason=f"pyarrow {pa.__version__} lacks this type, or casts of it")
        for item in items:
            if re.search("|".join(_NAMES), item.name):
                item.add_marker(skip)
