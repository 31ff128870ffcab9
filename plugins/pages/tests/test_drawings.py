"""Digits that are drawn on a model's page with a mouse, and what they are read as.

Covers: examples/digits/drawings.py,
plugins/pages/src/popgate_pages/static/picture.js.
"""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.api.browser import COMMAND, Browser
from tests.app.served import ROOT, ServedGateway

DIGITS = ROOT / "examples" / "digits" / "digits.onnx"
Point = tuple[float, float]
Points = list[Point]

#: How a person draws them: strokes of points in a box of 100 by 100. The seven is
#: plain here, and has a bar below.
SHAPES: dict[str, list[Points]] = {
    "0": [
        [(55, 2), (30, 8), (14, 32), (12, 60), (24, 88), (48, 99), (72, 90), (86, 64),
         (84, 34), (72, 10), (55, 2)],
    ],
    "1": [[(30, 24), (42, 14), (54, 2), (54, 40), (53, 70), (54, 99)]],
    "2": [
        [(14, 26), (20, 10), (40, 2), (62, 4), (78, 20), (76, 40), (58, 60), (34, 80),
         (12, 97), (40, 96), (88, 97)],
    ],
    "3": [
        [(16, 12), (36, 2), (62, 4), (76, 18), (70, 36), (44, 46), (68, 54), (84, 70),
         (76, 90), (50, 99), (26, 96), (12, 84)],
    ],
    "4": [
        [(58, 2), (40, 26), (22, 46), (8, 64), (40, 65), (92, 64)],
        [(64, 34), (63, 60), (64, 98)],
    ],
    "5": [
        [(80, 3), (50, 4), (22, 4), (20, 24), (18, 42), (40, 36), (64, 40), (82, 58),
         (80, 80), (60, 97), (34, 98), (14, 88)],
    ],
    "6": [
        [(70, 3), (48, 14), (28, 38), (18, 64), (22, 86), (42, 98), (64, 94), (78, 78),
         (70, 60), (50, 54), (30, 62), (20, 74)],
    ],
    "7": [[(12, 6), (50, 5), (86, 6), (66, 36), (48, 68), (36, 98)]],
    "8": [
        [(70, 18), (52, 3), (30, 10), (28, 30), (48, 46), (70, 60), (80, 80), (62, 97),
         (36, 96), (22, 80), (32, 60), (54, 46), (72, 32), (70, 18)],
    ],
    "9": [
        [(76, 24), (60, 5), (36, 6), (20, 24), (28, 44), (50, 50), (70, 40), (77, 22),
         (74, 50), (68, 76), (58, 98)],
    ],
}  # fmt: skip
BAR: Points = [(38, 52), (56, 51), (74, 52)]
#: Height in pixels, width to height, slant, and the place of the middle on the sheet.
HANDS = [
    (200, 0.75, 0.0, (0, 0)),
    (110, 0.7, 0.2, (-50, 40)),
    (150, 0.9, -0.15, (30, -30)),
    (220, 0.6, 0.3, (10, 5)),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    root = tmp_path_factory.mktemp("models")
    shutil.copy(DIGITS, root / "digits.onnx")
    with ServedGateway(root) as gateway:
        yield gateway.wait_ready()


def as_drawn(stroke: Points, hand: tuple[float, float, float, Point]) -> Points:
    """The places of the mouse, from the middle of the sheet, a few pixels apart."""
    height, wide, slant, (right, down) = hand
    moved = []
    for x, y in stroke:
        up = (50 - y) / 100 * height
        moved.append(((x - 50) / 100 * height * wide + slant * up + right, down - up))
    places = [moved[0]]
    for begin, end in itertools.pairwise(moved):
        steps = max(1, math.ceil(math.dist(begin, end) / 24))
        for step in range(1, steps + 1):
            share = step / steps
            x = begin[0] + (end[0] - begin[0]) * share
            places.append((x, begin[1] + (end[1] - begin[1]) * share))
    return places


def draw(chromium: Browser, strokes: list[Points]) -> str:
    """What the page says of a drawing; each stroke is answered."""
    chromium.evaluate(
        "[...document.querySelectorAll('button')]"
        ".find(b => b.textContent === 'Clear').click()"
    )
    x, y = chromium.place(".sheet")
    for stroke in strokes:
        chromium.evaluate("document.querySelector('.answer .big')?.remove()")
        (right, down), *others = stroke
        chromium.mouse("mousePressed", x + right, y + down)
        for right, down in others:
            chromium.mouse("mouseMoved", x + right, y + down)
        chromium.mouse("mouseReleased", x + right, y + down)
        chromium.wait("document.querySelector('.answer .big') !== null")
    return chromium.text(".answer .big").split()[0]


@pytest.mark.skipif(COMMAND is None, reason="there is no Chromium here")
def test_drawings_are_read(served: ServedGateway, tmp_path: Path) -> None:
    wrong = []
    with Browser(tmp_path) as chromium:
        chromium.resize(1280, 900)
        chromium.open(f"{served.url}/#/models/digits")
        chromium.wait("document.querySelector('.sheet') !== null")
        for number, hand in enumerate(HANDS):
            for digit, shape in SHAPES.items():
                has_bar = digit == "7" and number % 2
                strokes = [*shape, BAR] if has_bar else shape
                found = draw(chromium, [as_drawn(each, hand) for each in strokes])
                if found != digit:
                    wrong.append(f"{digit} as {found} by hand {number}")
        assert not chromium.errors
    assert len(wrong) <= 2, wrong
