"""A picture for the page: curves over batches, in several panels with axes from zero."""

import math
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

_LEFT, _WIDTH, _HEIGHT, _TOP, _STEP = 70, 420, 120, 76, 190
_WHOLE = 760
_COLOURS = ("#0b6b63", "#b5533c", "#5b6fae", "#8a6d3b")
_STYLE = """
    text { font: 14px -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #16302e; }
    .h { font-size: 15px; font-weight: 600; }
    .s { font-size: 13px; fill: #44605d; }
    @media (prefers-color-scheme: dark) { svg { filter: invert(0.9) hue-rotate(180deg); } }
    .grid { stroke: #cfe0dd; stroke-width: 1; }
    .curve { fill: none; stroke-width: 1.6; }
"""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve: its name, and its points in the order of batches."""

    name: str
    points: list[Point]


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel: its title, and curves of the same unit."""

    title: str
    curves: list[Curve]


def draw(path: Path, title: str, panels: list[Panel]) -> None:
    """Write the picture."""
    height = _TOP + _STEP * len(panels)
    last = max(x for panel in panels for curve in panel.curves for x, _ in curve.points)
    lines = [
        f'<rect width="{_WHOLE}" height="{height}" rx="10" fill="#f4f8f7"/>',
        f'<text class="h" x="{_LEFT}" y="30">{escape(title)}</text>',
    ]
    descriptions = []
    for number, panel in enumerate(panels):
        lines += _panel(panel, _TOP + _STEP * number, last)
        descriptions += [
            f"{panel.title}, {curve.name}: {curve.points[0][1]:.0f} at first, {curve.points[-1][1]:.0f} at last"
            for curve in panel.curves
        ]
    body = "\n".join(f"  {line}" for line in lines)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WHOLE} {height}" role="img" '
        f'aria-labelledby="t d">\n  <title id="t">{escape(title)}</title>\n'
        f'  <desc id="d">{escape("; ".join(descriptions))}.</desc>\n  <style>{_STYLE}  </style>\n{body}\n</svg>\n'
    )


def _panel(panel: Panel, top: int, last: float) -> list[str]:
    high = _round_above(max(y for curve in panel.curves for _, y in curve.points))
    bottom = top + _HEIGHT

    def across(x: float) -> float:
        return _LEFT + _WIDTH * x / last

    def down(y: float) -> float:
        return bottom - _HEIGHT * y / high

    lines = [f'<text x="{_LEFT}" y="{top - 14}">{escape(panel.title)}</text>']
    for part in range(5):
        value = high * part / 4
        lines += [
            f'<line class="grid" x1="{_LEFT}" y1="{down(value):.1f}" x2="{_LEFT + _WIDTH}" y2="{down(value):.1f}"/>',
            f'<text class="s" x="{_LEFT - 8}" y="{down(value) + 4:.1f}" text-anchor="end">{value:,.4g}</text>',
            f'<text class="s" x="{across(last * part / 4):.1f}" y="{bottom + 18}" text-anchor="middle">{last * part / 4:,.0f}</text>',
        ]
    labels = sorted(panel.curves, key=lambda curve: -curve.points[-1][1])
    height = -math.inf
    for curve in labels:
        colour = _COLOURS[panel.curves.index(curve)]
        places = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in curve.points)
        lines.append(f'<polyline class="curve" stroke="{colour}" points="{places}"/>')
        height = max(height + 16, down(curve.points[-1][1]))
        lines.append(
            f'<text class="s" x="{_LEFT + _WIDTH + 26}" y="{height + 4:.1f}" style="fill: {colour}">'
            f"{escape(curve.name)}</text>"
        )
    return lines


def _round_above(value: float) -> float:
    """Return a round number above a value; a quarter of it is round too."""
    size = 10.0 ** math.floor(math.log10(value))
    return next(size * part for part in (1, 2, 4, 6, 8, 10, 12) if size * part >= value)
