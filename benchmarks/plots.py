"""Plots of costs over sizes, both logarithmic, as SVG; a matplotlib would be the larger part of all
that `make bench` installs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, floor, log10
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 560, 340
_LEFT, _TOP, _RIGHT, _BOTTOM = 70, 40, 20, 50
_COLOURS = ("#1f6feb", "#d1580d", "#2da44e", "#8250df")

Point = tuple[float, float]


class LogScale:
    """Maps values to a range of pixels, with whole powers of ten at both ends."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        self.low, self.high = floor(log10(min(values))), ceil(log10(max(values)))
        self.high = max(self.high, self.low + 1)
        self._begin, self._end = begin, end

    def __call__(self, value: float) -> float:
        part = (log10(value) - self.low) / (self.high - self.low)
        return self._begin + part * (self._end - self._begin)

    def powers(self) -> Iterator[float]:
        return (10.0**power for power in range(self.low, self.high + 1))


def plot(title: str, x: str, y: str, lines: dict[str, Sequence[Point]]) -> str:
    """Return a plot of named lines."""
    points = [point for line in lines.values() for point in line]
    across = LogScale([at for at, _ in points], _LEFT, _WIDTH - _RIGHT)
    up = LogScale([value for _, value in points], _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
        ' font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_WIDTH / 2, 20, title, size=15),
        _text(_WIDTH / 2, _HEIGHT - 10, x),
        f'<g transform="translate(16 {_HEIGHT / 2}) rotate(-90)">{_text(0, 0, y)}</g>',
    ]
    for value in across.powers():
        parts.append(_rule(across(value), _TOP, across(value), _HEIGHT - _BOTTOM))
        parts.append(_text(across(value), _HEIGHT - _BOTTOM + 16, f"{value:,.10g}"))
    for value in up.powers():
        parts.append(_rule(_LEFT, up(value), _WIDTH - _RIGHT, up(value)))
        parts.append(_text(_LEFT - 6, up(value) + 4, f"{value:,.10g}", anchor="end"))
    for number, (name, line) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path = " ".join(f"{across(at):.1f},{up(value):.1f}" for at, value in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{across(at):.1f}" cy="{up(value):.1f}" r="3" fill="{colour}"/>'
            for at, value in line
        ]
        parts.append(
            f'<rect x="{_LEFT + 12}" y="{_TOP + 8 + 18 * number}" width="12" height="4"'
            f' fill="{colour}"/>'
        )
        parts.append(_text(_LEFT + 30, _TOP + 14 + 18 * number, name, anchor="start"))
    return "\n".join([*parts, "</svg>", ""])


def _text(x: float, y: float, text: str, *, anchor: str = "middle", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">'
        f"{escape(text)}</text>"
    )


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="#ddd"/>'
