"""A ``Chart`` as one inline SVG picture: lines, bars and points, gaps where there is no value, colours from the page.

Numbers along x, or names along x for lines and points; bars over names lie on their side, so that long names can be
read. A series differs from its neighbours by colour and by dash or shape, never by colour alone.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, isfinite, log10
from typing import Final

from markupsafe import Markup

from credit_inspector.panel import Chart, Series
from credit_inspector.reports.wording import line, number

WIDTH: Final = 760
HEIGHT: Final = 250
RIGHT: Final = WIDTH - 14
BAR_RIGHT: Final = WIDTH - 70
"""Where bars that lie on their side end, so that their values have room."""
ROW: Final = 22
"""Height of a bar that lies on its side."""
CHARACTER: Final = 6.3
"""Width of a Latin character at the size of the labels; a wide character takes two."""
HOVER: Final = 400
"""Above so many values a series has no text for each of them, which would be heavier than the picture."""
MEANT: Final = ("unearned", "earned", "punished")
"""Series of these names have the colour that these words have in the strip."""
COLOURS: Final = 6
DASHES: Final = ("", "7 3", "2 3", "9 3 2 3", "4 2", "1 2")
SHAPES: Final = (
    "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0",
    "M-3 -3H3V3H-3Z",
    "M0 -4L4 3H-4Z",
    "M0 -4.5L4.5 0L0 4.5L-4.5 0Z",
    "M-4 -3H4L0 4Z",
    "M-4 -1H4V1H-4Z",
)


def figure(chart: Chart) -> Markup:
    """The chart with its title and its legend."""
    return Markup('<figure class="chart"><figcaption>{}</figcaption>{}{}</figure>').format(
        line(chart.title), _legend(chart), _picture(chart)
    )


def _picture(chart: Chart) -> Markup:
    names = _names(chart)
    if not any(_values(series) for series in chart.series):
        return Markup('<p class="note">no values</p>')
    if names and all(series.mark == "bar" for series in chart.series):
        return _sideways(chart, names)
    return _upright(chart, names)


# ── numbers and names ───────────────────────────────────────────────────────────────────────────────────────────────


def _pairs(series: Series) -> Iterator[tuple[float | str, float | None]]:
    """Each x with its y, or with ``None`` where there is no value."""
    xs: Sequence[float | str] = series.x
    for x, y in zip(xs, series.y, strict=True):
        if isinstance(x, str) or isfinite(x):
            yield x, float(y) if y is not None and isfinite(y) else None


def _values(series: Series) -> list[float]:
    return [y for _, y in _pairs(series) if y is not None]


def _names(chart: Chart) -> list[str]:
    """The names along x, in the order seen; none when x is a number."""
    return list(dict.fromkeys(x for series in chart.series for x in series.x if isinstance(x, str)))


@dataclass(frozen=True, slots=True)
class _Axis:
    """A stretch of numbers on a stretch of the picture."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def _axis(values: Sequence[float], start: float, end: float, *, zero: bool = False, count: int = 5) -> _Axis:
    """An axis that begins and ends at a tick."""
    low, high = _spread(min([*values, 0.0] if zero else values), max([*values, 0.0] if zero else values))
    step = _step((high - low) / count)
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    return _Axis(first * step, last * step, start, end, tuple(k * step for k in range(first, last + 1)))


def _tight(low: float, high: float, start: float, end: float) -> _Axis:
    """An axis that begins and ends with its data; the ticks are inside."""
    low, high = _spread(low, high)
    step = _step((high - low) / 7)
    ticks = tuple(k * step for k in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1))
    return _Axis(low, high, start, end, ticks)


def _spread(low: float, high: float) -> tuple[float, float]:
    half = (abs(low) or 1.0) / 2
    return (low, high) if high > low else (low - half, high + half)


def _step(rough: float) -> float:
    """The next larger step of 1, 2 or 5 times a power of ten."""
    power: float = 10.0 ** floor(log10(rough))
    return next(times * power for times in (1, 2, 5, 10) if rough <= times * power * (1 + 1e-9))


# ── upright: numbers or names along x ───────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Plane:
    """The two axes of an upright chart, and the width that a bar place has on x."""

    x: _Axis
    y: _Axis
    places: Mapping[str, float]
    slot: float

    def at(self, x: float | str) -> float:
        return self.x(self.places[x] if isinstance(x, str) else float(x))


def _upright(chart: Chart, names: list[str]) -> Markup:
    plane = _plane(chart, names)
    parts = [
        *_bands(chart, plane),
        *_y_ticks(plane),
        *_x_ticks(plane, names),
        *_bars(chart, plane),
        *(part for look, series in _looks(chart) if series.mark == "line" for part in _lines(series, look, plane)),
        *(part for look, series in _looks(chart) if series.mark != "bar" for part in _dots(series, look, plane)),
        _axis_label(chart.x_label, (plane.x.start + RIGHT) / 2, HEIGHT - 6),
        Markup('<text class="axis-label" transform="translate(11 {}) rotate(-90)" text-anchor="middle">{}</text>').format(
            (plane.y.start + plane.y.end) / 2, _cut(line(chart.y_label), plane.y.start - plane.y.end)
        ),
    ]
    return _svg(chart, HEIGHT, parts)


def _plane(chart: Chart, names: list[str]) -> _Plane:
    bars = any(series.mark == "bar" for series in chart.series)
    y = _axis([value for series in chart.series for value in _values(series)], HEIGHT - 44, 14, zero=bars)
    places = {name: float(k) for k, name in enumerate(names)}
    xs = sorted({places[x] if isinstance(x, str) else float(x) for series in chart.series for x, _ in _pairs(series)})
    step = min((b - a for a, b in pairwise(xs)), default=1.0)
    pad = step / 2 if bars or names else 0.0
    left = 22 + max(_width(_tick(tick)) for tick in y.ticks)
    x = _tight(xs[0] - pad, xs[-1] + pad, left, RIGHT)
    return _Plane(x, y, places, 0.8 * (x(x.low + step) - left))


def _bands(chart: Chart, plane: _Plane) -> Iterator[Markup]:
    x, y = plane.x, plane.y
    for start, end, label in chart.bands:
        low, high = x(max(start, x.low)), x(min(end, x.high))
        if low < high:
            yield Markup('<rect class="band" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}">{}</rect>').format(
                low, y.end, high - low, y.start - y.end, _hover(line(label))
            )
            yield Markup('<text class="band-label" x="{:.1f}" y="{:.1f}">{}</text>').format(
                low + 4, y.end + 12, _cut(line(label), high - low - 6)
            )


def _y_ticks(plane: _Plane) -> Iterator[Markup]:
    left = plane.x.start
    for tick in plane.y.ticks:
        at = plane.y(tick)
        yield Markup('<line class="{}" x1="{:.1f}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(_rule(tick), left, RIGHT, at, at)
        yield Markup('<text class="tick" x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text>').format(left - 6, at + 4, _tick(tick))


def _x_ticks(plane: _Plane, names: list[str]) -> Iterator[Markup]:
    labels = [(plane.places[name], line(name)) for name in names] or [(tick, _tick(tick)) for tick in plane.x.ticks]
    room = (plane.x.end - plane.x.start) / max(1, len(labels))
    every = max(1, ceil(36 / room))
    for at, label in labels[::every]:
        yield Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
            plane.x(at), HEIGHT - 28, _cut(label, room * every - 6) if names else label
        )


def _bars(chart: Chart, plane: _Plane) -> Iterator[Markup]:
    """Bars of several series stand side by side at their x; more bars than pixels become one a pixel."""
    bars = [(look, series) for look, series in _looks(chart) if series.mark == "bar"]
    zero = plane.y(0)
    for k, (look, series) in enumerate(bars):
        width = plane.slot / len(bars)
        for x, value in _tallest(series, plane) if width < 1 else _pairs(series):
            if value is not None:
                top, left = plane.y(value), plane.at(x) - plane.slot / 2 + width * k
                box = (left, min(top, zero), max(1.0, width - 1), abs(top - zero))
                yield _bar(look, box, "" if width < 1 else _said(series, x, value))


def _tallest(series: Series, plane: _Plane) -> list[tuple[float | str, float | None]]:
    """Of the bars that share a pixel, the highest and the lowest: they cover all others."""
    high: dict[tuple[int, bool], tuple[float | str, float]] = {}
    for x, value in _pairs(series):
        if value is not None:
            pixel = (round(plane.at(x)), value > 0)
            if pixel not in high or abs(value) > abs(high[pixel][1]):
                high[pixel] = (x, value)
    return list(high.values())


def _lines(series: Series, look: _Look, plane: _Plane) -> Iterator[Markup]:
    """One path for each stretch without a gap; a value between two gaps gets a short stroke, so that it is seen."""
    stretch: list[tuple[float, float]] = []
    for x, value in [*_pairs(series), (0.0, None)]:
        if value is not None:
            stretch.append((plane.at(x), plane.y(value)))
            continue
        if len(stretch) == 1:
            stretch.append((stretch[0][0] + 1, stretch[0][1]))
        if stretch:
            points = " L".join(f"{across:.1f} {up:.1f}" for across, up in stretch)
            yield Markup('<path class="line {}" d="M{}" stroke-dasharray="{}"/>').format(look.colour, points, look.dash)
        stretch = []


def _dots(series: Series, look: _Look, plane: _Plane) -> Iterator[Markup]:
    """The points of a cloud; on a line, unseen places that say their value when pointed at."""
    few = len(series.x) <= HOVER
    for x, value in _pairs(series):
        if value is not None and (few or series.mark == "point"):
            yield _shape(look, series.mark, (plane.at(x), plane.y(value)), _said(series, x, value) if few else "")


# ── sideways: bars over names ───────────────────────────────────────────────────────────────────────────────────────


def _sideways(chart: Chart, names: list[str]) -> Markup:
    thick = max(6, ROW // len(chart.series))
    row = thick * len(chart.series) + 8
    bottom = 8 + row * len(names)
    left = 14 + min(240.0, max(_width(line(name)) for name in names))
    x = _axis([value for series in chart.series for value in _values(series)], left, BAR_RIGHT, zero=True)
    parts = [
        *_fallen_ticks(x, bottom),
        *(_name(name, left, 8 + row * (n + 0.5)) for n, name in enumerate(names)),
        *(
            part
            for k, (look, series) in enumerate(_looks(chart))
            for name, value in _pairs(series)
            for part in _lying(series, look, (name, value), x, (8 + row * names.index(str(name)) + k * thick, thick))
        ),
        _axis_label(chart.y_label, (left + BAR_RIGHT) / 2, bottom + 31),
    ]
    return _svg(chart, bottom + 38, parts)


def _fallen_ticks(x: _Axis, bottom: float) -> Iterator[Markup]:
    for tick in x.ticks:
        at = x(tick)
        yield Markup('<line class="{}" x1="{:.1f}" x2="{:.1f}" y1="4" y2="{}"/>').format(_rule(tick), at, at, bottom)
        yield Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(at, bottom + 15, _tick(tick))


def _name(name: str, left: float, middle: float) -> Markup:
    return Markup('<text class="name" x="{:.1f}" y="{:.1f}" text-anchor="end">{}{}</text>').format(
        left - 8, middle, _cut(line(name), left - 14), _hover(line(name))
    )


def _lying(
    series: Series, look: _Look, pair: tuple[float | str, float | None], x: _Axis, rows: tuple[float, float]
) -> Iterator[Markup]:
    (name, value), (top, thick) = pair, rows
    end = x(value or 0.0)
    if value is not None:
        yield _bar(look, (min(x(0), end), top, abs(end - x(0)), thick - 2), _said(series, name, value))
    left = value is not None and value < 0
    yield Markup('<text class="value" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(
        end - 5 if left else end + 5, top + thick / 2 + 3, "end" if left else "start", number(value)
    )


# ── strokes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Look:
    """What tells one series from another."""

    colour: str
    dash: str
    shape: str


def _looks(chart: Chart) -> list[tuple[_Look, Series]]:
    return [(_look(series.name, k), series) for k, series in enumerate(chart.series)]


def _look(name: str, k: int) -> _Look:
    colour = f"c-{name}" if name in MEANT else f"c{k % COLOURS}"
    return _Look(colour, DASHES[k % len(DASHES)], SHAPES[k % len(SHAPES)])


def _svg(chart: Chart, height: float, parts: Sequence[Markup]) -> Markup:
    series = ", ".join(line(one.name) for one in chart.series)
    label = f"{line(chart.title)}: {line(chart.y_label)} over {line(chart.x_label)}; {series}"
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, round(height), label, Markup("").join(parts)
    )


def _bar(look: _Look, box: tuple[float, float, float, float], said: str) -> Markup:
    return Markup('<rect class="bar {}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}">{}</rect>').format(
        look.colour, *box, _hover(said)
    )


def _shape(look: _Look, mark: str, at: tuple[float, float], said: str) -> Markup:
    return Markup('<path class="{} {}" transform="translate({:.1f} {:.1f})" d="{}">{}</path>').format(
        "point" if mark == "point" else "dot", look.colour, *at, look.shape, _hover(said)
    )


def _hover(said: str) -> Markup:
    return Markup("<title>{}</title>").format(said) if said else Markup("")


def _axis_label(text: str, x: float, y: float) -> Markup:
    return Markup('<text class="axis-label" x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>').format(x, y, line(text))


def _legend(chart: Chart) -> Markup:
    if len(chart.series) < 2:
        return Markup("")
    items = [Markup("<li>{}{}</li>").format(_sample(look, one.mark), line(one.name)) for look, one in _looks(chart)]
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(items))


def _sample(look: _Look, mark: str) -> Markup:
    strokes = {
        "bar": _bar(look, (3, 1, 16, 10), ""),
        "point": _shape(look, mark, (11, 6), ""),
        "line": Markup('<path class="line {}" d="M0 6H22" stroke-dasharray="{}"/>').format(look.colour, look.dash),
    }
    return Markup('<svg class="key" viewBox="0 0 22 12" aria-hidden="true">{}</svg>').format(strokes[mark])


# ── words ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _said(series: Series, x: float | str, y: float) -> str:
    return f"{line(series.name)} · {line(x) if isinstance(x, str) else _tick(x)}: {number(y)}"


def _rule(tick: float) -> str:
    return "zero" if abs(tick) < 1e-12 else "rule"


def _tick(value: float) -> str:
    """Without the last digits that a step of 0.1 leaves behind."""
    return number(float(f"{value:.10g}") + 0.0)


def _width(text: str) -> float:
    return CHARACTER * sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _cut(text: str, room: float) -> str:
    """As much of ``text`` as there is room for."""
    if _width(text) <= room:
        return text
    while text and _width(text) + CHARACTER > room:
        text = text[:-1]
    return f"{text.rstrip()}…" if text else ""
