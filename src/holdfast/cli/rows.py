"""Output of rows of states, as a table or JSON."""

import argparse
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.cli.output import print_status, print_table

if TYPE_CHECKING:
    import pyarrow as pa

_LIMIT = 100
_LENGTH = 200  # of an element


def add_rows(command: argparse.ArgumentParser) -> None:
    """Add `--limit` and `--json`."""
    command.add_argument(
        "--limit",
        type=_parse_count,
        metavar="N",
        help=f"maximum number of rows; without --json {_LIMIT} by default",
    )
    command.add_argument("--json", action="store_true", help="print JSON, one object a line")


def element_cell(_: str, value: Any) -> str:
    """Format a value in a table, truncated if it is long."""
    text = cell_text(value)
    return f"{text[:_LENGTH]}…" if len(text) > _LENGTH else text


def cell_text(value: Any) -> str:
    """Format a value in a table: text unchanged, other values as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def print_rows(
    options: argparse.Namespace,
    batches: "Iterable[pa.RecordBatch]",
    *,
    right: Sequence[str],
    cell: Callable[[str, Any], str] = element_cell,
) -> bool:
    """Print rows by the options of `add_rows`; return whether there are any.

    Args:
        options: The command's options.
        batches: The rows.
        right: Columns of a table to align right.
        cell: Formats a value in a table; called with the name of its column and the value.
    """
    limit = options.limit
    if limit is None and not options.json:
        limit = _LIMIT
    # One more row shows whether there are more.
    rows = itertools.islice(_json_rows(batches), None if limit is None else limit + 1)
    if options.json:
        has_rows = False
        for row in itertools.islice(rows, limit):
            has_rows = True
            print(json.dumps(row))  # in ASCII: other characters can control the terminal
        return has_rows
    shown = list(rows)
    texts = [{name: cell(name, row[name]) for name in row} for row in shown[:limit]]
    print_table(texts, right=right)
    if len(shown) > limit:
        print_status(f"only the first {limit} rows are shown; use --limit to show more")
    return bool(shown)


def _json_rows(batches: "Iterable[pa.RecordBatch]") -> Iterator[dict[str, Any]]:
    """Yield each row, with values for JSON."""
    from holdfast.cli.json_values import json_value  # noqa: PLC0415  # loads Arrow

    for batch in batches:
        for row in zip(*batch.columns, strict=True):
            yield {
                name: json_value(value) for name, value in zip(batch.schema.names, row, strict=True)
            }


def _parse_count(text: str) -> int:
    """Parse a number of rows."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer >= 1, got {text!r}")
    return int(text)
