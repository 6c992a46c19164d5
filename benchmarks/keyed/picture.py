"""A picture for the documentation: what a batch costs at ten times the keys."""

import math
from pathlib import Path
from xml.sax.saxutils import escape

from benchmarks.keyed.works import short

_LEFT, _TOP, _WIDTH, _HEIGHT = 80, 70, 470, 270
_COLOURS = {
    "holdfast": "#0b6b63",
    "holdfast-reducing": "#2f9e93",
    "holdfast-heap": "#77b5ad",
    "rocksdb": "#b5533c",
    "dict": "#8a6d3b",
    "flink-heap": "#5b6fae",
    "flink-rocksdb": "#9a4f96",
}
_STYLE = """
    text { font: 14px -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #16302e; }
    .h { font-size: 15px; font-weight: 600; }
    .s { font-size: 13px; fill: #44605d; }
    @media (prefers-color-scheme: dark) { svg { filter: invert(0.9) hue-rotate(180deg); } }
    .grid { stroke: #cfe0dd; stroke-width: 1; }
    .curve { fill: none; stroke-width: 2; }
    .first { stroke-width: 3.5; }
"""


def draw(
    path: Path, points: dict[str, dict[int, float]], titles: dict[str, str], note: str
) -> None:
    """Write the picture: a curve for each side, both axes logarithmic.

    Args:
        path: Path of the SVG file.
        points: CPU milliseconds per batch by number of keys, by side.
        titles: The sides' titles.
        note: Conditions of the measurement, printed below the picture.
    """
    sizes = sorted({keys for curve in points.values() for keys in curve})
    values = [value for curve in points.values() for value in curve.values()]
    low, high = 10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values)))

    def across(keys: float) -> float:
        span = math.log10(sizes[-1] / sizes[0]) or 1.0
        return _LEFT + _WIDTH * math.log10(keys / sizes[0]) / span

    def down(value: float) -> float:
        return _TOP + _HEIGHT * (1 - math.log10(value / low) / (math.log10(high / low) or 1.0))

    lines = [
        f'<rect width="760" height="{_TOP + _HEIGHT + 90}" rx="10" fill="#f4f8f7"/>',
        f'<text class="h" x="{_LEFT}" y="30">CPU milliseconds per batch, by number of keys</text>',
        f'<text class="s" x="{_LEFT}" y="50">Lower is better. Both axes are logarithmic.</text>',
    ]
    value = low
    while value <= high:
        lines += [
            f'<line class="grid" x1="{_LEFT}" y1="{down(value):.1f}" x2="{_LEFT + _WIDTH}" y2="{down(value):.1f}"/>',
            f'<text class="s" x="{_LEFT - 10}" y="{down(value) + 4:.1f}" text-anchor="end">{value:,}</text>',
        ]
        value *= 10
    for keys in sizes:
        lines += [
            f'<line class="grid" x1="{across(keys):.1f}" y1="{_TOP}" x2="{across(keys):.1f}" y2="{_TOP + _HEIGHT}"/>',
            f'<text class="s" x="{across(keys):.1f}" y="{_TOP + _HEIGHT + 20}" text-anchor="middle">{short(keys)} keys</text>',
        ]
    heights = _apart({name: down(curve[max(curve)]) for name, curve in points.items()})
    for number, (name, curve) in enumerate(points.items()):
        colour = _COLOURS.get(name, "#444444")
        places = " ".join(f"{across(keys):.1f},{down(curve[keys]):.1f}" for keys in sorted(curve))
        kind = "curve first" if number == 0 else "curve"
        lines.append(f'<polyline class="{kind}" stroke="{colour}" points="{places}"/>')
        lines += [
            f'<circle cx="{across(keys):.1f}" cy="{down(cost):.1f}" r="3.5" fill="{colour}"><title>'
            f"{escape(titles[name])}, {short(keys)} keys: {_milliseconds(cost)}</title></circle>"
            for keys, cost in curve.items()
        ]
        last = curve[max(curve)]
        lines.append(
            f'<text x="{_LEFT + _WIDTH + 14}" y="{heights[name] + 4:.1f}" style="fill: {colour}">'
            f"{escape(titles[name])}, {_milliseconds(last)}</text>"
        )
    lines.append(f'<text class="s" x="{_LEFT}" y="{_TOP + _HEIGHT + 56}">{escape(note)}</text>')
    summary = "; ".join(
        f"{titles[name]}: "
        + ", ".join(f"{_milliseconds(curve[keys])} at {short(keys)}" for keys in sorted(curve))
        for name, curve in points.items()
    )
    body = "\n".join(f"  {line}" for line in lines)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {_TOP + _HEIGHT + 90}" role="img" '
        f'aria-labelledby="t d">\n  <title id="t">Cost of a batch at ten times the keys</title>\n'
        f'  <desc id="d">{escape(summary)}.</desc>\n  <style>{_STYLE}  </style>\n{body}\n</svg>\n'
    )


def _apart(heights: dict[str, float], min_distance: float = 17.0) -> dict[str, float]:
    """Heights of labels that don't cover each other, near where they belong."""
    placed: dict[str, float] = {}
    previous = -math.inf
    for name in sorted(heights, key=heights.__getitem__):
        previous = max(heights[name], previous + min_distance)
        placed[name] = previous
    return placed


def _milliseconds(cost: float) -> str:
    """Three digits, and no power of ten."""
    return f"{cost:,.0f} ms" if cost >= 100 else f"{cost:.3g} ms"
