"""Output of commands: data on stdout, as tables or JSON; everything else on stderr."""

import itertools
import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unicodedata import combining, east_asian_width

if TYPE_CHECKING:
    import pyarrow as pa

ROW_LIMIT = 100
_ELEMENT_CHARACTERS = 200

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_TIME_UNITS = ((86_400, "day"), (3_600, "h"), (60, "min"), (1, "s"))


def printable(text: str) -> str:
    """Escape unprintable characters: text from a file could control the terminal."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def print_line(text: str = "") -> None:
    """Print a text as one line."""
    print(printable(text))


def print_json(value: Any) -> None:
    """Print indented JSON."""
    # JSON does not escape characters from U+0080 on, and some of these control terminals.
    print(json.dumps(value, indent=2, ensure_ascii=sys.stdout.isatty()))


def print_table(rows: Sequence[Mapping[str, str]], *, right: Sequence[str] = ()) -> None:
    """Print rows in aligned columns, one line each, also in a narrow terminal; nothing if there are no rows.

    Args:
        rows: All have the same columns in the same order; the first row names them.
        right: Columns to align right.
    """
    if not rows:
        return
    names = list(rows[0])
    cells = [names, *([printable(cell) for cell in row.values()] for row in rows)]
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        padded = []
        for name, cell, width in zip(names[:-1], line, widths, strict=False):
            padding = " " * (width - _width(cell))
            padded.append(padding + cell if name in right else cell + padding)
        last = line[-1]
        if names[-1] in right:
            last = " " * (widths[-1] - _width(last)) + last
        print_line("  ".join([*padded, last]))


def _width(text: str) -> int:
    """Return the number of terminal columns that a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if combining(character) else 2 if east_asian_width(character) in "WF" else 1
        for character in text
    )


def element_cell(_: str, value: Any) -> str:
    """Format a value in a table, truncated if it is long."""
    text = cell_text(value)
    return f"{text[:_ELEMENT_CHARACTERS]}…" if len(text) > _ELEMENT_CHARACTERS else text


def cell_text(value: Any) -> str:
    """Format a value in a table: text unchanged, other values as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def print_rows(
    options: Namespace,
    batches: "Iterable[pa.RecordBatch]",
    *,
    right: Sequence[str],
    cell: Callable[[str, Any], str] = element_cell,
) -> bool:
    """Print rows by the options `ROWS`; return whether there are any.

    Args:
        options: The command's options.
        batches: The rows.
        right: Columns of a table to align right.
        cell: Formats a value in a table; called with the name of its column and the value.
    """
    limit = options.limit
    if limit is None and not options.json:
        limit = ROW_LIMIT
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


def print_pairs(pairs: Mapping[str, str]) -> None:
    """Print names and values, a line for each line of a value."""
    width = max((len(printable(name)) for name in pairs), default=0)
    for name, text in pairs.items():
        for number, line in enumerate(text.splitlines()):
            print_line(f"  {'' if number else printable(name):{width}}  {line}")


def print_status(message: str) -> None:
    """Print a message on stderr."""
    print(printable(f"holdfast: {message}"), file=sys.stderr)


def print_list(heading: str, lines: Iterable[str]) -> None:
    """Print a heading and indented lines on stderr."""
    print_status(heading)
    for line in lines:
        print_status(f"  {line}")


@contextmanager
def interrupt_hint(hint: str) -> Iterator[None]:
    """Print a hint if the block is interrupted from the keyboard."""
    try:
        yield
    except KeyboardInterrupt:
        print_status(f"interrupted; {hint}")
        raise


def write_and_print(
    options: Namespace,
    write: Callable[[], str],
    values: Mapping[str, Any],
    *,
    hint: str,
    next_step: str,
) -> None:
    """Write a planned savepoint, unless this is a dry run, and print its pointer.

    Args:
        options: The command's options, with `dry_run` and `json`.
        write: Writes the savepoint; returns the pointer.
        values: Further values for the output as JSON.
        hint: Advice after an interrupt.
        next_step: Advice for the use of the savepoint.
    """
    pointer = None
    if options.dry_run:
        print_status("nothing was written")
    else:
        with interrupt_hint(hint):
            pointer = write()
        print_status(next_step)
    if options.json:
        print_json({"pointer": pointer, **values})
    elif pointer is not None:
        print(pointer)


def minute_text(time: str) -> str:
    """Shorten a time in ISO 8601 and UTC to the minute."""
    return second_text(time)[:16]


def second_text(time: str) -> str:
    """Format a time in ISO 8601 and UTC for people, to the second."""
    return time.replace("T", " ").removesuffix("+00:00")


def bytes_text(count: float) -> str:
    """Format a number of bytes, such as `1.5 GiB`."""
    value = float(count)
    for unit in _BYTE_UNITS[:-1]:
        if value < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {_BYTE_UNITS[-1]}"


def ms_text(ms: float) -> str:
    """Format a duration, such as `41 ms` or `1.2 s`."""
    if ms < 10:
        return f"{ms:.1f} ms"
    if ms < 1_000:
        return f"{ms:.0f} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    return span_text(ms / 1000)


def span_text(seconds: float) -> str:
    """Format a time span in its two largest units, such as `3 min 5 s`."""
    rest = max(0, int(seconds))
    words = []
    for length, unit in _TIME_UNITS:
        count, rest = divmod(rest, length)
        if count:
            plural = "s" if unit == "day" and count > 1 else ""
            words.append(f"{count} {unit}{plural}")
        elif words:
            break  # the next unit would be far smaller
    return " ".join(words[:2]) or "0 s"


def count_text(count: int, noun: str) -> str:
    """Format a count with its noun, such as `3 files`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


@contextmanager
def progress(title: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar while the block runs, if stderr is a terminal.

    Args:
        title: Text before the bar.
        total_bytes: Number of bytes to process.

    Yields:
        A function to call with each number of processed bytes, from any thread.
    """
    from rich.console import Console  # noqa: PLC0415  # takes a while to load
    from rich.progress import (  # noqa: PLC0415  # only a terminal needs it
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(title, total=total_bytes)
        yield lambda count: bar.advance(task, count)
