"""The section `[image]` of a model's ``config.toml``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Strict

from app.config.config_keys import between, checked, key, section, text

_MOST_SIDE = 16384


def _size(value: Any) -> tuple[int, int]:
    sides = [value, value] if type(value) is int else value
    if type(sides) not in (list, tuple) or len(sides) != 2:
        raise ValueError("a height and a width in pixels, as in [224, 224]")
    height, width = sides
    if not all(type(side) is int and 0 < side <= _MOST_SIDE for side in sides):
        raise ValueError(f"a height and a width of 1 to {_MOST_SIDE} pixels")
    return height, width


def _per_channel(value: Any) -> tuple[float, ...]:
    numbers = value if type(value) in (list, tuple) else [value]
    if len(numbers) not in (1, 3) or not all(type(n) in (int, float) for n in numbers):
        raise ValueError("a number, or one for each of three channels")
    return tuple(float(number) for number in numbers)


def _divisors(value: Any) -> tuple[float, ...]:
    numbers = _per_channel(value)
    if not all(number > 0 for number in numbers):
        raise ValueError("numbers above 0")
    return numbers


@section
@dataclass(frozen=True, slots=True)
class ImageConfig:
    """The section: how a picture becomes the numbers of an input.

    Shape and datatype of the input decide options that the section leaves out.
    """

    input: Annotated[str, text(1000)] = key(
        "", "the input that takes pictures, if there are several"
    )
    size: Annotated[tuple[int, int] | None, checked(_size)] = key(
        None, "height and width, if they are free dimensions of the input"
    )
    mode: Literal["", "RGB", "BGR", "L"] = key(
        "", "the channels: RGB, BGR, or L for greyscale"
    )
    layout: Literal["", "NCHW", "NHWC", "NHW", "CHW", "HWC", "HW"] = key(
        "", "the order of the dimensions, if the shape does not show it"
    )
    resize: Literal["crop", "stretch", "pad"] = key(
        "crop",
        "crop cuts the edges off, stretch changes the proportions, pad adds "
        "edges of `fill`",
    )
    shorter: Annotated[int, between(0, _MOST_SIDE)] = key(
        0,
        "with crop: length of the shorter side in pixels, before the centre is cut out",
    )
    resample: Literal["nearest", "bilinear", "bicubic", "lanczos"] = key(
        "bilinear", "the interpolation when the size changes"
    )
    fill: Annotated[int, between(0, 255)] = key(
        0, "the value of the edges that `pad` adds"
    )
    scale: Annotated[float, between(-1e6, 1e6)] | None = key(
        None, "the factor of each value of 0 to 255; default: 1/255 for floats, else 1"
    )
    mean: Annotated[tuple[float, ...], checked(_per_channel)] = key(
        (0.0,), "the number to subtract after scaling"
    )
    std: Annotated[tuple[float, ...], checked(_divisors)] = key(
        (1.0,), "the number to divide by after that"
    )
    orientation: Annotated[bool, Strict()] = key(
        True, "whether to rotate a picture by its EXIF data"
    )
    top: Annotated[int, between(0, 1000)] = key(
        5,
        "number of highest classes to return of an output with labels, for a "
        "picture; 0: all values",
    )
    max_pictures: Annotated[int, between(1, 4096)] = key(
        64, "most pictures in one request"
    )
    max_bytes: Annotated[int, between(1, 1 << 28)] = key(
        32 << 20, "most bytes of one file"
    )
    max_pixels: Annotated[int, between(1, 200_000_000)] = key(
        50_000_000, "most pixels of one picture"
    )
    timeout: Annotated[float, between(0.1, 600.0)] = key(
        10.0, "time limit for decoding one picture"
    )
