"""Rows of states, as commands print them."""

import argparse
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.cli.output import print_table, say

if TYPE_CHECKING:
    import pyarrow as pa

_LIMIT = 100
_LENGTH = 200  # of an element


def add_rows(command: argparse.ArgumentParser) -> None:
    """Add `--limit` and `--json`, which say how rows are printed."""
    command.add_argument(
        "--limit",
        type=_count,
        metavar="N",
        help=f"at most so many rows; without --json {_LIMIT} if not given",
    )
    command.add_argument("--json", action="store_true", help="print JSON, one object a line")


def element_cell(_: str, value: Any) -> str:
    """A value of a column in a table, cut if it is long."""
    text = cell_text(value)
    return f"{text[:_LENGTH]}…" if len(text) > _LENGTH else text


def cell_text(value: Any) -> str:
    """A value in a table: texts as they are, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def print_rows(
    options: argparse.Namespace,
    batches: "Iterable[pa.RecordBatch]",
    *,
    right: Sequence[str],
    cell: Callable[[str, Any], str] = element_cell,
) -> bool:
    """Print rows as the options of `add_rows` say; whether there are any.

    Args:
        options: The command's options.
        batches: The rows.
        right: Columns that stand at the right of their place in a table.
        cell: The text of a value in a table, by the name of its column.
    """
    limit = options.limit
    if limit is None and not options.json:
        limit = _LIMIT
    # One row more, to know whether there are more.
    rows = itertools.islice(_json_rows(batches), None if limit is None else limit + 1)
    if options.json:
        is_any = False
        for row in itertools.islice(rows, limit):
            is_any = True
            print(json.dumps(row))  # in ASCII: other characters may steer the terminal
        return is_any
    shown = list(rows)
    texts = [{name: cell(name, row[name]) for name in row} for row in shown[:limit]]
    print_table(texts, right=right)
    if len(shown) > limit:
        say(f"there are more than these {limit} rows; --limit shows more of them")
    return bool(shown)


def _json_rows(batches: "Iterable[pa.RecordBatch]") -> Iterator[dict[str, Any]]:
    """Each row of some batches, with values that JSON has."""
    from holdfast.cli.json_values import json_value  # noqa: PLC0415  # it needs Arrow

    for batch in batches:
        for row in zip(*batch.columns, strict=True):
            yield {
                name: json_value(value) for name, value in zip(batch.schema.names, row, strict=True)
            }


def _count(text: str) -> int:
    """An option's value that is a number of rows."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1")
    return int(text)
