"""Charts of bars, as numbers that a template draws: no text is in them, so that they can be stretched."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

HEIGHT = 100
"""A chart's height in units of its own; so that a bar's height is a percentage."""

_MOST_BARS = 96
_FEWEST_SLOTS = 16
_SLOT, _GAP = 10.0, 2.0
_LEAST_HEIGHT = 1.5


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar that a chart is asked to show.

    Attributes:
        parts: Sizes, from the bottom up; or side by side.
        title: The bar's values as text; shown when the mouse is over the bar.
        is_marked: Whether something is wrong there; it is then as high as the chart.
        is_restart: Whether another driver has gone on there; a line stands before it.
    """

    parts: tuple[float, ...]
    title: str
    is_marked: bool = False
    is_restart: bool = False


@dataclass(frozen=True, slots=True)
class Shape:
    """A rectangle; `kind` is its colour's class."""

    x: float
    y: float
    width: float
    height: float
    kind: str


@dataclass(frozen=True, slots=True)
class Place:
    """All rectangles of one bar, and what to say of it."""

    x: float
    width: float
    title: str
    shapes: list[Shape]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart, `width` by 100 units.

    Attributes:
        width: The chart's width.
        places: From left to right.
        level: Height of a line across the chart, from the top; None if there is no line.
        together: Number of neighbouring bars of which only the highest is shown.
        is_full: Whether the last bar is at the right end.
    """

    width: float
    places: list[Place]
    level: float | None
    together: int
    is_full: bool


def chart_of(
    bars: Sequence[Bar], *, side_by_side: bool = False, level: float | None = None
) -> Chart:
    """Draw bars from left to right, as high as they are against the highest.

    Args:
        bars: The bars to show; of many neighbours only the highest is shown.
        side_by_side: Whether the parts of a bar stand next to each other.
        level: A size at which a line goes across.
    """
    whole = max if side_by_side else sum
    together = -(-len(bars) // _MOST_BARS) or 1
    chosen = []
    for first in range(0, len(bars), together):
        group = bars[first : first + together]
        highest_bar = max(group, key=lambda bar: (bar.is_marked, whole(bar.parts or (0,))))
        # What is not shown itself must not hide that the job was restarted.
        restarts = [bar for bar in group if bar.is_restart and bar is not highest_bar]
        chosen.append(
            replace(
                highest_bar,
                title="; ".join(bar.title for bar in [highest_bar, *restarts]),
                is_restart=highest_bar.is_restart or bool(restarts),
            )
        )
    highest = max((whole(bar.parts or (0,)) for bar in chosen), default=0) or 1
    slots = max(len(chosen), _FEWEST_SLOTS)
    places = [
        _place(bar, index * _SLOT, highest, side_by_side=side_by_side)
        for index, bar in enumerate(chosen)
    ]
    line = None if level is None else HEIGHT * (1 - min(level / highest, 1))
    return Chart(slots * _SLOT, places, line, together, slots == len(chosen))


def _place(bar: Bar, x: float, highest: float, *, side_by_side: bool) -> Place:
    width = _SLOT - _GAP
    shapes = [Shape(x - _GAP, 0, _GAP, HEIGHT, "restart")] if bar.is_restart else []
    if bar.is_marked:
        return Place(x, width, bar.title, [*shapes, Shape(x, 0, width, HEIGHT, "bad")])
    bottom = float(HEIGHT)
    for index, part in enumerate(bar.parts):
        if not part:
            continue
        height = max(HEIGHT * part / highest, _LEAST_HEIGHT)
        kind = f"part{index}"
        if side_by_side:
            half = width / len(bar.parts)
            shapes.append(Shape(x + index * half, HEIGHT - height, half, height, kind))
        else:
            bottom -= height
            shapes.append(Shape(x, max(bottom, 0), width, height, kind))
    return Place(x, width, bar.title, shapes)
