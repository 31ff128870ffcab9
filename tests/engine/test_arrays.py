"""Strings of large arrays are freed in blocks, unless something else refers to them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import popef_io
from engine import arrays
from engine.arrays import free_strings
from engine.tensor import Array
from native.build import why_not
from tests.c_modules import compiled

SIZE = 10_000


class Text(str):
    """A string that can be watched."""


@pytest.fixture(scope="module", autouse=True)
def is_alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., bool]:
    """Compile the function, because all else is plain Python here."""
    if why_not():
        pytest.skip(why_not())
    source = Path(popef_io.__file__).with_name("_strings.c")
    module = compiled(source, tmp_path_factory.mktemp("strings"))
    found: Callable[..., bool] = module.is_alone
    return found


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch, is_alone: Callable[..., bool]) -> list[int]:
    """The number of strings that are left at each pause between two blocks."""
    left: list[int] = []
    monkeypatch.setattr(arrays, "is_alone", is_alone)
    monkeypatch.setattr(arrays, "give_way", lambda: left.append(len(alive)))
    return left


alive: weakref.WeakSet[Text] = weakref.WeakSet()


def texts(*shape: int) -> Array:
    """Return an array of strings, as codecs make them: a view of another array."""
    flat = np.empty(SIZE, object)
    flat[:] = [Text(number) for number in range(SIZE)]
    for text in flat:
        alive.add(text)
    del text
    return flat.reshape(shape) if shape else flat


@pytest.mark.parametrize("shape", [(), (SIZE,), (100, 100)])
def test_strings_are_freed_in_blocks(shape: tuple[int, ...], pauses: list[int]) -> None:
    free_strings({"x": texts(*shape), "numbers": np.zeros(SIZE)})
    assert pauses == [SIZE - 4096, SIZE - 2 * 4096, 0]


@pytest.mark.parametrize(
    "holder",
    [lambda x: x, lambda x: x[1:], lambda x: x.base, lambda x: memoryview(x)],
    ids=["array", "view", "base", "memory"],
)
def test_what_something_else_refers_to_stays(
    holder: Callable[[Array], object], pauses: list[int]
) -> None:
    feed = {"x": texts(100, 100)}
    held = holder(feed["x"])
    free_strings(feed)
    assert not feed
    assert pauses == []
    assert len(alive) == SIZE
    del held
    assert not alive


def test_a_part_is_not_the_whole(pauses: list[int]) -> None:
    whole = texts()
    free_strings({"x": whole[: SIZE // 2 + 1]})
    assert pauses == []
    assert whole[0] == "0"
