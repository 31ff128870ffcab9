"""Digits as a person draws them with a mouse, made of lines and arcs at random.

The scans that the classifier learns from have strokes of one thickness and sevens with
a bar. These drawings add what they lack: thin and thick pens, slants, plain sevens,
ones with and without a foot. The page of a model reduces what is drawn in the same way:
moved to the middle, as large as the image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from network import Array
from numpy.typing import NDArray

SIDE = 8
#: Points in a pixel, each way: a pixel's value is how many of them are inked.
_FINE = 4
#: The thinnest and the thickest pen, in pixels.
_PENS = (0.8, 2.0)
_SLANT, _TURN = 0.3, 0.15
#: Lines of points from (0, 0), the top left, to (1, 1).
Strokes = list[Array]
Random = np.random.RandomState


def drawings(count: int, rng: Random) -> tuple[Array, NDArray[np.int64]]:
    """Return `count` images, float64 ``[count, 1, 8, 8]`` from 0 to 16, and their
    digits, all ten in turn."""
    digits = np.arange(count, dtype=np.int64) % 10
    images = np.stack([_drawn(_SHAPES[digit](rng), rng) for digit in digits.tolist()])
    return images[:, np.newaxis], digits


def _drawn(strokes: Strokes, rng: Random) -> Array:
    """Return strokes in a hand of its own, reduced to the image."""
    slant = rng.uniform(-_SLANT, _SLANT)
    turn = rng.uniform(-_TURN, _TURN)
    wide = rng.uniform(0.55, 1.0)
    wave = rng.uniform(-0.06, 0.06, 4)
    lines = []
    for stroke in strokes:
        x, y = stroke[:, 0], stroke[:, 1]
        x = x + wave[0] * np.sin(math.pi * y) + wave[1] * np.sin(2 * math.pi * y)
        y = y + wave[2] * np.sin(math.pi * x) + wave[3] * np.sin(2 * math.pi * x)
        x = wide * x - slant * y
        cos, sin = math.cos(turn), math.sin(turn)
        lines.append(np.stack([cos * x - sin * y, sin * x + cos * y], axis=1))
    return reduced(lines, rng.uniform(*_PENS))


def reduced(lines: Strokes, pen: float) -> Array:
    """Return lines as an image: in the middle, as large as fits, `pen` pixels thick."""
    points = np.concatenate(lines)
    low, high = points.min(0), points.max(0)
    scale = (SIDE - pen) / max(high - low)
    places = (np.arange(SIDE * _FINE) + 0.5) / _FINE
    grid = np.stack(np.meshgrid(places, places), axis=-1)
    inked = np.zeros(grid.shape[:2], bool)
    for line in lines:
        moved = (line - (low + high) / 2) * scale + SIDE / 2
        inked |= _distance(grid, moved) <= pen / 2
    blocks = inked.reshape(SIDE, _FINE, SIDE, _FINE)
    image: Array = blocks.sum((1, 3)).astype(np.float64)
    return image


def _distance(grid: Array, line: Array) -> Array:
    """Return how far each point of the grid is from a line of points."""
    begin, along = line[:-1], np.diff(line, axis=0)
    squared = np.maximum((along**2).sum(1), 1e-12)
    from_begin = grid[:, :, np.newaxis] - begin
    share = np.clip((from_begin * along).sum(-1) / squared, 0, 1)
    nearest = from_begin - share[..., np.newaxis] * along
    distance: Array = np.sqrt((nearest**2).sum(-1).min(-1))
    return distance


def _line(*points: tuple[float, float]) -> Array:
    return np.array(points, np.float64)


def _arc(
    x: float, y: float, wide: float, high: float, start: float, end: float
) -> Array:
    """Return a part of an ellipse.

    Turns are clockwise and begin at the right; 1 is the whole ellipse.
    """
    turns = np.linspace(start, end, 14) * 2 * math.pi
    return np.stack([x + wide * np.cos(turns), y + high * np.sin(turns)], axis=1)


def _joined(*parts: Array) -> Strokes:
    return [np.concatenate(parts)]


def _zero(rng: Random) -> Strokes:
    wide = rng.uniform(0.3, 0.5)
    start = rng.uniform(0.6, 0.9)
    return [_arc(0.5, 0.5, wide, 0.5, start, start + rng.uniform(0.95, 1.05))]


def _one(rng: Random) -> Strokes:
    kind = rng.randint(4)
    stem = _line((0.5, 0), (0.5 + rng.uniform(-0.03, 0.03), 1))
    if kind == 0:
        return [stem]
    flag = _line((0.5 - rng.uniform(0.12, 0.35), rng.uniform(0.15, 0.35)), (0.5, 0))
    foot = [_line((0.25, 1), (0.75, 1))] if kind == 1 else []
    return [np.concatenate([flag, stem]), *foot]


def _two(rng: Random) -> Strokes:
    end = rng.uniform(0.02, 0.12)
    bow = _arc(0.5, 0.28, 0.4, 0.28, rng.uniform(0.5, 0.58), 1 + end)
    foot = _line((0.1, 1), (rng.uniform(0.8, 1.0), 1 - rng.uniform(0, 0.06)))
    return _joined(bow, foot)


def _three(rng: Random) -> Strokes:
    middle = rng.uniform(0.42, 0.52)
    if rng.randint(4) == 0:  # a flat top
        top = _line((0.15, 0), (0.85, 0), (0.45, middle))
    else:
        top = _arc(0.45, middle / 2, 0.38, middle / 2, rng.uniform(0.5, 0.62), 1.22)
    radius = (1 - middle) / 2
    low = _arc(0.45, middle + radius, 0.45, radius, 0.78, rng.uniform(1.4, 1.52))
    return _joined(top, low)


def _four(rng: Random) -> Strokes:
    across = rng.uniform(0.55, 0.72)
    right = rng.uniform(0.6, 0.8)
    if rng.randint(2):  # open: the stem is a stroke of its own
        left = _line((rng.uniform(0.15, 0.4), 0), (0.05, across), (1, across))
        return [left, _line((right, rng.uniform(0.0, 0.35)), (right, 1))]
    return [_line((right, 1), (right, 0), (0.05, across), (1, across))]


def _five(rng: Random) -> Strokes:
    corner = rng.uniform(0.38, 0.48)
    top = _line((0.85, 0), (0.2, 0), (0.15, corner))
    radius = (1 - corner + 0.06) / 2
    low = _arc(0.45, 1 - radius, 0.45, radius, 0.65, rng.uniform(1.36, 1.48))
    return _joined(top, low)


def _six(rng: Random) -> Strokes:
    high = rng.uniform(0.24, 0.32)
    back = _arc(0.75, 0.62, 0.65, 0.62, rng.uniform(0.72, 0.78), 0.5)
    loop = _arc(0.5, 1 - high, 0.4, high, 0.5, -0.5)
    return _joined(back, loop)


def _seven(rng: Random) -> Strokes:
    foot = rng.uniform(0.2, 0.5)
    down = _line((0.1, rng.uniform(0, 0.05)), (0.9, 0), (foot, 1))
    if rng.randint(2):
        return [down]
    middle = (0.9 + foot) / 2
    bar = rng.uniform(0.15, 0.3)
    return [down, _line((middle - bar, 0.5), (middle + bar, 0.5))]


def _eight(rng: Random) -> Strokes:
    middle = rng.uniform(0.42, 0.52)
    top = _arc(0.5, middle / 2, rng.uniform(0.28, 0.36), middle / 2, 0.25, 1.25)
    low = _arc(
        0.5, (1 + middle) / 2, rng.uniform(0.34, 0.44), (1 - middle) / 2, -0.25, 0.75
    )
    return _joined(top, low)


def _nine(rng: Random) -> Strokes:
    high = rng.uniform(0.24, 0.32)
    loop = _arc(0.45, high, 0.38, high, 0, -1)
    if rng.randint(2):
        tail = _line((0.83, high), (rng.uniform(0.65, 0.85), 1))
    else:
        tail = _arc(0.33, 0.5, 0.5, 0.5, rng.uniform(-0.06, 0), rng.uniform(0.28, 0.4))
    return _joined(loop, tail)


_SHAPES: Sequence[Callable[[Random], Strokes]] = (
    _zero, _one, _two, _three, _four, _five, _six, _seven, _eight, _nine,
)  # fmt: skip
