"""Rows of states, as commands print them."""

import argparse
import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_LIMIT = 100
"""So many rows a table has if nobody asks for more."""

_LENGTH = 200  # of an element


def json_rows(batches: "Iterable[pa.RecordBatch]") -> Iterator[dict[str, Any]]:
    """Each row of some batches, with values that JSON has."""
    from holdfast.cli.json_values import json_value  # noqa: PLC0415  # it needs Arrow

    for batch in batches:
        for row in zip(*batch.columns, strict=True):
            yield {
                name: json_value(value) for name, value in zip(batch.schema.names, row, strict=True)
            }


def element_cell(_: str, value: Any) -> str:
    """A value of a column in a table, cut if it is long."""
    text = cell_text(value)
    return f"{text[:_LENGTH]}…" if len(text) > _LENGTH else text


def cell_text(value: Any) -> str:
    """A value in a table: texts as they are, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def positive_count(text: str) -> int:
    """An option's value that is a number of rows."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1")
    return int(text)
