"""Long tables: which rows are shown, folded and left out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Row = TypeVar("Row")

SHOWN_ROWS, MOST_ROWS = 8, 500


@dataclass(frozen=True, slots=True)
class Rows(Generic[Row]):
    """Rows of a table.

    Attributes:
        shown: The first of them.
        folded: The next rows, shown when a reader unfolds them.
        left_out: Number of rows that are not on the page.
    """

    shown: list[Row]
    folded: list[Row]
    left_out: int


def rows_of(rows: Sequence[Row]) -> Rows[Row]:
    """Show the first rows, fold the others, and leave out what no page can hold."""
    return Rows(
        list(rows[:SHOWN_ROWS]),
        list(rows[SHOWN_ROWS:MOST_ROWS]),
        max(len(rows) - MOST_ROWS, 0),
    )
