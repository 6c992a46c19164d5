"""How commands print: data on stdout, as a table or JSON; everything else on stderr."""

import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Literal

_WIDE = 1 << 16
"""Columns that a pipe has: what reads it must find each row in one line."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def printable(text: str) -> str:
    """The text with unprintable characters escaped: text from a file could steer the terminal."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def print_line(text: str = "") -> None:
    """Print one line, whatever is in the text."""
    print(printable(text))


def print_json(value: Any) -> None:
    """Print JSON with line breaks, so that people can read it too."""
    # JSON leaves characters from U+0080 on as they are, and some of these steer terminals.
    print(json.dumps(value, indent=2, ensure_ascii=sys.stdout.isatty()))


def print_table(rows: Sequence[Mapping[str, str]], *, right: Sequence[str] = ()) -> None:
    """Print rows with columns below each other; nothing if there are none.

    Args:
        rows: All have the same columns in the same order; the first row names them.
        right: Columns of numbers.
    """
    if not rows:
        return
    # Not at the top: JSON does without it, and it takes a while to load.
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in rows[0]:
        is_number = column in right
        justify: Literal["left", "right"] = "right" if is_number else "left"
        table.add_column(column, justify=justify, overflow="fold", no_wrap=is_number)
    for row in rows:
        table.add_row(
            *(Text(printable(cell)) for cell in row.values())
        )  # no markup: brackets are data
    seen = sys.stdout.isatty()
    drawn = io.StringIO()  # on stdout itself rich ends the process if nobody reads
    Console(file=drawn, force_terminal=seen, width=None if seen else _WIDE, highlight=False).print(
        table
    )
    print(drawn.getvalue(), end="")


def print_lines(rows: Sequence[Mapping[str, str]], *, right: Sequence[str] = ()) -> None:
    """Print rows with columns below each other, each in one line, however wide the terminal is.

    The last column can so be copied as a whole. Arguments are those of `print_table`.
    """
    if not rows:
        return
    rows = [{name: printable(cell) for name, cell in row.items()} for row in rows]
    *aligned, last = rows[0]
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in aligned}
    for row in [{name: name for name in rows[0]}, *rows]:
        cells = [f"{row[name]:{'>' if name in right else '<'}{widths[name]}}" for name in aligned]
        print_line("  ".join([*cells, row[last]]))


def print_pairs(pairs: Mapping[str, str]) -> None:
    """Print names and their values, a line each, however wide the terminal is."""
    width = max((len(printable(name)) for name in pairs), default=0)
    for name, text in pairs.items():
        for number, line in enumerate(text.splitlines()):
            print_line(f"  {'' if number else printable(name):{width}}  {line}")


def say(message: str) -> None:
    """Tell people something on stderr."""
    print(printable(f"holdfast: {message}"), file=sys.stderr)


@contextmanager
def told_when_interrupted(way_out: str) -> Iterator[None]:
    """If the block is interrupted from the keyboard, say what to do then."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"interrupted; {way_out}")
        raise


def time_text(ms: int) -> str:
    """Milliseconds since 1970 as ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


def bytes_text(count: int) -> str:
    """A number of bytes for people, such as `1.5 GiB`."""
    value = float(count)
    for unit in _UNITS[:-1]:
        if value < 1024:  # of the next unit
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {_UNITS[-1]}"


def age_text(seconds: float) -> str:
    """How long ago something was, for people, such as `3 h`."""
    whole = max(0, int(seconds))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if whole >= 2 * length:
            return f"{whole // length} {unit}"
    return f"{whole} s"


def count_text(count: int, noun: str) -> str:
    """A count with its noun, such as `3 files`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


@contextmanager
def progress(what: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar while the block runs, if stderr is a terminal.

    Args:
        what: What is being done.
        total_bytes: How much there is to do.

    Yields:
        A function that is told of each number of bytes that were done; any thread may call it.
    """
    # Not at the top: it takes a while to load.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
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
        task = bar.add_task(what, total=total_bytes)
        yield lambda count: bar.advance(task, count)
