"""A picture to numbers, with Pillow. Runs in the decoding process."""

from __future__ import annotations

import io
import warnings
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from popgate_images.plan import DecodePlan

#: The formats that are decoded; each needs a decoder that is written for hostile files.
FORMATS: Final = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
_RESAMPLE: Final = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


class BadPicture(ValueError):
    """The bytes cannot be decoded as a picture; the message says why."""


def decode(raw: bytes, plan: DecodePlan) -> bytes:
    """Return the numbers of one picture, `plan.nbytes` of them. Raises `BadPicture`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            opened = Image.open(io.BytesIO(raw), formats=FORMATS)
        except (OSError, ValueError, SyntaxError, EOFError):
            known = ", ".join(FORMATS)
            begin = raw[:8]
            msg = f"expected one of {known}, got a file that begins with {begin!r}"
            raise BadPicture(msg) from None
        width, height = opened.size
        if width * height > plan.max_pixels:
            raise BadPicture(
                f"it has {width} x {height} pixels, more than max_pixels "
                f"({plan.max_pixels}) in the section [image] allows"
            )
        try:
            return _numbers(_sized(_in_mode(opened, plan), plan), plan)
        except BadPicture:
            raise
        except MemoryError:
            raise BadPicture("too little memory to decode it") from None
        except Exception as error:  # decoders raise any error for damaged files
            raise BadPicture(f"it cannot be decoded: {error}") from None


def _in_mode(opened: Image.Image, plan: DecodePlan) -> Image.Image:
    """Decode, turn and convert to RGB or to shades of grey."""
    image: Image.Image = opened
    if plan.orientation:
        image = ImageOps.exif_transpose(image)
    # `convert` would keep only the low byte of 16 bits
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image.convert("L" if plan.mode == "L" else "RGB")


def _sized(image: Image.Image, plan: DecodePlan) -> Image.Image:
    """Resize a picture to the height and width of the plan."""
    width, height, resample = plan.width, plan.height, _RESAMPLE[plan.resample]
    if plan.resize == "stretch":
        return _resized(image, width, height, resample)
    if plan.resize == "pad":
        factor = min(width / image.width, height / image.height)
        inner = _resized(
            image,
            min(width, max(1, round(image.width * factor))),
            min(height, max(1, round(image.height * factor))),
            resample,
        )
        fill: Any = plan.fill if image.mode == "L" else (plan.fill,) * 3
        whole = Image.new(image.mode, (width, height), fill)
        whole.paste(inner, ((width - inner.width) // 2, (height - inner.height) // 2))
        return whole
    return _cropped(image, plan, resample)


def _cropped(
    image: Image.Image, plan: DecodePlan, resample: Image.Resampling
) -> Image.Image:
    """Shrink the picture as far as allowed, and cut out its centre."""
    width, height = plan.width, plan.height
    if plan.shorter:
        shorter = min(image.size)
        sides = [
            plan.shorter if side == shorter else int(plan.shorter * side / shorter)
            for side in image.size
        ]
    else:
        factor = max(width / image.width, height / image.height)
        sides = [
            max(width, round(image.width * factor)),
            max(height, round(image.height * factor)),
        ]
    if sides[0] * sides[1] > plan.max_pixels:  # a line of pixels becomes a large area
        raise BadPicture(
            f"with {image.width} x {image.height} pixels it is too narrow: "
            f"scaled to {min(sides)} pixels on the shorter side, it would have "
            f"{sides[0]} x {sides[1]}"
        )
    found = _resized(image, sides[0], sides[1], resample)
    left, top = round((sides[0] - width) / 2), round((sides[1] - height) / 2)
    return found.crop((left, top, left + width, top + height))


def _resized(
    image: Image.Image, width: int, height: int, resample: Image.Resampling
) -> Image.Image:
    if image.size == (width, height):
        return image
    return image.resize((width, height), resample)


def _numbers(image: Image.Image, plan: DecodePlan) -> bytes:
    """Return the numbers of a picture of the right size."""
    pixels: npt.NDArray[np.uint8] = np.asarray(image)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if plan.mode == "BGR":
        pixels = pixels[:, :, ::-1]
    table = np.frombuffer(plan.table, plan.dtype).reshape(plan.channels, 256)
    planes = [table[n][pixels[:, :, n]] for n in range(plan.channels)]
    found = np.stack(planes, 0 if plan.channels_first else -1)
    return found.tobytes()
