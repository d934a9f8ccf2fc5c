"""Small charts as inline SVG: lines with bands, intervals side by side, stacked bars.

Drawn here rather than by a plotting library: a report then needs nothing installed, and colours
follow the page's light or dark theme. Every label is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

WIDTH, HEIGHT = 380, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 26, 30
COLOURS = ("var(--c0)", "var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)", "var(--c5)")


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a line, with an interval where there is one."""

    x: float
    y: float | None
    """None or not finite: a gap."""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of an interval chart."""

    label: str
    value: float
    low: float
    high: float


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers that span [low, high]: steps of 1, 2 or 5 times a power of ten."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return [0.0, 1.0]
    if high <= low:
        pad = abs(low) * 0.1 or 0.5
        low, high = low - pad, high + pad
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw * 0.999)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [n * step for n in range(first, last + 1)]


def number(value: float) -> str:
    """A tick's label: short, without trailing zeros."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e6 or size < 1e-3:
        mantissa, _, exponent = f"{value:.1e}".partition("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    return f"{value:.4g}"


def _finite(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


class _Axes:
    """Maps values to the picture, and draws the frame."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float], title: str) -> None:
        self.x_ticks = ticks(min(xs, default=0.0), max(xs, default=1.0))
        self.y_ticks = ticks(min(ys, default=0.0), max(ys, default=1.0))
        self.title = title

    def x(self, value: float) -> float:
        low, high = self.x_ticks[0], self.x_ticks[-1]
        return _LEFT + (value - low) / (high - low) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_ticks[0], self.y_ticks[-1]
        return HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM)

    def frame(self) -> str:
        out = [f'<text x="{_LEFT}" y="15" class="chart-title">{escape(self.title)}</text>']
        for tick in self.y_ticks:
            y = self.y(tick)
            out.append(
                f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}" class="grid"/>'
                f'<text x="{_LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{number(tick)}</text>'
            )
        for tick in self.x_ticks:
            out.append(
                f'<text x="{self.x(tick):.1f}" y="{HEIGHT - _BOTTOM + 16}" '
                f'text-anchor="middle">{number(tick)}</text>'
            )
        return "".join(out)


def _line(points: Sequence[Point], axes: _Axes, colour: str) -> str:
    out: list[str] = []
    band = [p for p in points if p.low is not None and p.high is not None]
    if len(band) > 1:
        upper = [f"{axes.x(p.x):.1f},{axes.y(p.high or 0.0):.1f}" for p in band]
        lower = [f"{axes.x(p.x):.1f},{axes.y(p.low or 0.0):.1f}" for p in reversed(band)]
        out.append(
            f'<polygon points="{" ".join(upper + lower)}" fill="{colour}" fill-opacity="0.18"/>'
        )
    run: list[str] = []
    runs = [run]
    for point in points:
        if point.y is None or not math.isfinite(point.y):
            run = []
            runs.append(run)
        else:
            run.append(f"{axes.x(point.x):.1f},{axes.y(point.y):.1f}")
    out += [
        f'<polyline points="{" ".join(run)}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
        for run in runs
        if len(run) > 1
    ]
    shown = [p for p in points if p.y is not None and math.isfinite(p.y)]
    if len(shown) <= 40:
        out += [
            f'<circle cx="{axes.x(p.x):.1f}" cy="{axes.y(p.y or 0.0):.1f}" r="2.6" '
            f'fill="{colour}"><title>{number(p.x)}: {number(p.y or 0.0)}</title></circle>'
            for p in shown
        ]
    return "".join(out)


def _svg(body: str, title: str, height: float = HEIGHT, width: float = WIDTH) -> Markup:
    return Markup(
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(title)}">'
        f"{body}</svg>"
    )


def line_chart(title: str, series: Mapping[str, Sequence[Point]]) -> Markup:
    """Lines over a common axis, each with its band where points have intervals.

    Args:
        title: above the picture.
        series: name to points, in order of x; up to six are told apart by colour.
    """
    points = [point for line in series.values() for point in line]
    ys = _finite([v for p in points for v in (p.y, p.low, p.high)])
    axes = _Axes([p.x for p in points], ys, title)
    body = axes.frame()
    for index, (name, line) in enumerate(series.items()):
        colour = COLOURS[index % len(COLOURS)]
        body += _line(line, axes, colour)
        if len(series) > 1:
            body += (
                f'<text x="{WIDTH - _RIGHT}" y="{_TOP + 4 + 13 * index}" text-anchor="end" '
                f'fill="{colour}" class="legend">{escape(name)}</text>'
            )
    return _svg(body, title)


def area_chart(
    title: str, series: Mapping[str, Sequence[Point]], end: float, top: float | None = None
) -> Markup:
    """What makes up a whole, over time: steps stacked on each other.

    Args:
        title: above the picture.
        series: name to points; each value holds from its x to the next one's. At equal places they
            have equal x, and a missing y is 0.
        end: where the last value ends.
        top: of the axis; None: the highest sum.
    """
    sums = [sum(p.y or 0.0 for p in column) for column in zip(*series.values(), strict=True)]
    first = next(iter(series.values()), ())
    axes = _Axes([p.x for p in first] + [end], [0.0, *([top] if top is not None else sums)], title)
    body = axes.frame()
    below = [0.0] * len(first)
    for index, (name, line) in enumerate(series.items()):
        colour = COLOURS[index % len(COLOURS)]
        above = [low + (p.y or 0.0) for low, p in zip(below, line, strict=True)]
        ends = [*[p.x for p in line[1:]], end]
        upper = [(x, y) for p, x2, y in zip(line, ends, above, strict=True) for x in (p.x, x2)]
        lower = [(x, y) for p, x2, y in zip(line, ends, below, strict=True) for x in (p.x, x2)]
        around = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in upper + lower[::-1])
        body += (
            f'<polygon points="{around}" fill="{colour}" fill-opacity="0.75">'
            f"<title>{escape(name)}</title></polygon>"
            f'<text x="{WIDTH - _RIGHT}" y="{_TOP + 8 + 12 * index}" text-anchor="end" '
            f'fill="{colour}" class="legend">{escape(name)}</text>'
        )
        below = above
    return _svg(body, title)


def interval_chart(
    title: str, bars: Sequence[Bar], low: float, high: float, *, zero: bool = False
) -> Markup:
    """Estimates with their intervals, one below the other.

    Args:
        title: above the picture.
        bars: from top to bottom.
        low: left end of the axis.
        high: right end.
        zero: mark 0 with a line.
    """
    width, label = 720.0, 300.0
    height = 46.0 + 24 * len(bars)

    def x(value: float) -> float:
        inside = min(max(value, low), high)
        return label + (inside - low) / (high - low) * (width - label - 70)

    out = [f'<text x="0" y="15" class="chart-title">{escape(title)}</text>']
    for tick in ticks(low, high):
        if low <= tick <= high:
            mark = "zero" if zero and tick == 0 else "grid"
            out.append(
                f'<line x1="{x(tick):.1f}" y1="24" x2="{x(tick):.1f}" y2="{height - 18:g}" '
                f'class="{mark}"/><text x="{x(tick):.1f}" y="{height - 4:g}" '
                f'text-anchor="middle">{number(tick)}</text>'
            )
    for index, bar in enumerate(bars):
        y = 38 + 24 * index
        name = bar.label if len(bar.label) <= 44 else bar.label[:43] + "…"
        out.append(
            f'<text x="{label - 10:g}" y="{y + 4}" text-anchor="end">{escape(name)}'
            f"<title>{escape(bar.label)}</title></text>"
        )
        if math.isnan(bar.value):
            out.append(f'<text x="{label + 5:g}" y="{y + 4}" class="muted">no sample</text>')
            continue
        out.append(
            f'<line x1="{x(bar.low):.1f}" y1="{y}" x2="{x(bar.high):.1f}" y2="{y}" '
            f'stroke="{COLOURS[0]}" stroke-width="3" stroke-opacity="0.45"/>'
            f'<circle cx="{x(bar.value):.1f}" cy="{y}" r="4.5" fill="{COLOURS[0]}"/>'
            f'<text x="{width:g}" y="{y + 4}" text-anchor="end">{bar.value:.3f}</text>'
        )
    return _svg("".join(out), title, height, width)


def stacked_bar(counts: Mapping[str, int], colours: Mapping[str, str]) -> Markup:
    """How a whole divides; the parts are named by hovering, and by whatever stands beside it."""
    total = sum(counts.values())
    out: list[str] = []
    at = 0.0
    for name, count in counts.items():
        if not count or not total:
            continue
        width = count / total * 300
        out.append(
            f'<rect x="{at:.2f}" y="0" width="{width:.2f}" height="14" '
            f'fill="{escape(colours.get(name, "var(--muted)"))}">'
            f"<title>{escape(name)}: {count}</title></rect>"
        )
        at += width
    described = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return _svg("".join(out), described, 14, 300)
