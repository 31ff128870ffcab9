"""Pictures become the numbers that the section says; hostile ones are refused."""

from __future__ import annotations

import contextlib
import io
import struct
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from app.config.config_keys import KeyProblem, read_section
from app.spec import ModelSpec, TensorSpec
from popgate_images.config import ImageConfig
from popgate_images.picture import BadPicture, decode
from popgate_images.plan import DecodePlan
from popgate_images.planning import input_of, plan_for

OUT = (TensorSpec.make("y", "FP32", (-1,)),)


def model(
    datatype: str = "FP32", shape: tuple[int, ...] = (-1, 3, 4, 6), rows: int = 8
) -> ModelSpec:
    return ModelSpec("m", "1", (TensorSpec.make("x", datatype, shape),), OUT, rows)


def plan(spec: ModelSpec | None = None, **keys: Any) -> DecodePlan:
    spec = spec or model()
    config = read_section(ImageConfig, keys)
    return plan_for(spec, input_of(spec, config), config)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def noise(width: int = 6, height: int = 4) -> Image.Image:
    values = np.random.default_rng(7).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(values.astype(np.uint8))


def numbers(raw: bytes, plan: DecodePlan) -> npt.NDArray[Any]:
    found = np.frombuffer(decode(raw, plan), plan.dtype)
    sides = (plan.height, plan.width)
    if plan.channels_first:
        return found.reshape(plan.channels, *sides)
    return found.reshape(*sides, plan.channels)


def test_as_torchvision_would() -> None:
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    image = noise()
    found = numbers(encoded(image), plan(mean=mean, std=std))
    pixels = np.asarray(image).astype(np.float32) / 255
    means, deviations = np.array(mean, np.float32), np.array(std, np.float32)
    wanted = ((pixels - means) / deviations).transpose(2, 0, 1)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_modes_layouts_and_integers() -> None:
    image, raw = noise(), encoded(noise())
    pixels = np.asarray(image)
    as_bytes = plan(model("UINT8", (-1, 4, 6, 3)))
    assert (numbers(raw, as_bytes) == pixels).all()
    bgr = plan(model("UINT8", (-1, 4, 6, 3)), mode="BGR")
    assert (numbers(raw, bgr) == pixels[:, :, ::-1]).all()
    grey = np.asarray(image.convert("L"))
    for shape, rows in (((-1, 1, 4, 6), 8), ((-1, 4, 6), 8), ((4, 6), 0)):
        found = numbers(raw, plan(model("FP32", shape, rows), scale=1))
        assert (found[0] == grey).all()
    half = numbers(raw, plan(model("FP16"), scale=2, mean=10))
    assert (half == pixels.transpose(2, 0, 1) * 2.0 - 10).all()
    signed = numbers(raw, plan(model("INT8"), mean=128))
    assert (signed.astype(int) == pixels.transpose(2, 0, 1).astype(int) - 128).all()


@pytest.mark.parametrize("resize", ["crop", "stretch", "pad"])
@pytest.mark.parametrize("size", [(40, 10), (10, 40), (6, 4), (1, 1), (300, 7)])
def test_every_size_becomes_that_of_the_model(
    resize: str, size: tuple[int, int]
) -> None:
    raw = encoded(Image.new("RGB", size, (200, 0, 0)))
    wanted = plan(model("UINT8"), resize=resize, fill=9)
    found = numbers(raw, wanted)
    inside = found[0][found[0] != 9]
    assert (inside == 200).all()
    assert inside.size == 24 or resize == "pad"


def test_the_centre_of_the_shorter_side() -> None:
    """The same pixels as torchvision's Resize(8) and CenterCrop((4, 6))."""
    image = noise(32, 16)
    found = numbers(encoded(image), plan(model("UINT8"), shorter=8))
    small = image.resize((16, 8), Image.Resampling.BILINEAR).crop((5, 2, 11, 6))
    assert (found == np.asarray(small).transpose(2, 0, 1)).all()


def test_a_photograph_is_turned() -> None:
    image = noise(4, 6)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    raw = encoded(image, "PNG", exif=exif)
    turned = np.asarray(image.transpose(Image.Transpose.ROTATE_270))
    found = numbers(raw, plan(model("UINT8")))
    assert (found == turned.transpose(2, 0, 1)).all()
    kept = numbers(raw, plan(model("UINT8", (-1, 3, 6, 4)), orientation=False))
    assert (kept == np.asarray(image).transpose(2, 0, 1)).all()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "1"])
def test_formats_and_modes(kind: str, mode: str) -> None:
    if kind == "JPEG" and mode in ("P", "RGBA"):
        pytest.skip("JPEG has no such mode")
    image = Image.new("RGB", (6, 4), "white").convert(mode)
    assert numbers(encoded(image, kind), plan(model("UINT8"))).min() > 250


def test_sixteen_bits() -> None:
    image = Image.fromarray(np.full((4, 6), 0xAB12, np.uint16))
    grey = plan(model("UINT8", (-1, 1, 4, 6)))
    assert (numbers(encoded(image), grey) == 0xAB).all()


def bomb(side: int) -> bytes:
    """A PNG file of a few bytes that says that it has side x side pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "expected one of JPEG"),
        (b"not a picture", "expected one of JPEG.*b'not a pi'"),
        (bomb(60_000), "60000 x 60000 pixels, more than max_pixels .50000000."),
        (bomb(10), "cannot be decoded"),
        (encoded(noise(500, 500), "JPEG")[:3000], "cannot be decoded"),
        (encoded(Image.new("1", (60_000, 1))), "too narrow"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n", "expected one of JPEG"),
    ],
)
def test_what_is_no_picture(
    raw: bytes, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # as in its process
    with pytest.raises(BadPicture, match=words):
        decode(raw, plan(model("UINT8", (-1, 3, 64, 6400))))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_pictures_are_decoded_or_refused(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["JPEG", "PNG", "WEBP", "GIF", "BMP"]))
    raw = bytearray(encoded(noise(20, 20), kind))
    for _ in range(data.draw(st.integers(1, 5))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    wanted = plan()
    with contextlib.suppress(BadPicture):
        assert len(decode(bytes(raw), wanted)) == wanted.nbytes


@pytest.mark.parametrize(
    ("spec", "keys", "words"),
    [
        (model(shape=(-1, 3, -1, -1)), {}, r"needs size = \[HEIGHT"),
        (
            model(shape=(-1, 3, -1, 5)),
            {"size": 7},
            "size is .7, 7., which does not fit",
        ),
        (model(shape=(-1, 5, 4, 6)), {}, "needs layout"),
        (model(shape=(-1, 3, 4, 3)), {}, "needs layout"),
        (model(shape=(-1, 4)), {}, "needs layout"),
        (model(shape=(-1,)), {}, "must name its input"),
        (model("BYTES", (-1,)), {"input": "x"}, "is not an input of numbers"),
        (model(), {"input": "z"}, "the model's inputs are x"),
        (model(), {"mode": "L"}, "mode L has 1 channels"),
        (model(), {"shorter": 5}, "shorter is 5"),
        (model("INT8"), {}, "which INT8 does not have"),
        (model(shape=(-1, 1, 4, 6)), {"mean": [1, 2, 3]}, "mean has 3 numbers"),
        (model(), {"layout": "HWC"}, "layout is HWC"),
    ],
)
def test_what_does_not_suit_the_model(
    spec: ModelSpec, keys: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        plan(spec, **keys)


@pytest.mark.parametrize(
    "keys",
    [{"size": [1]}, {"size": 0}, {"std": 0}, {"std": []}, {"mode": "CMYK"}, {"a": 1}],
)
def test_what_the_section_does_not_have(keys: dict[str, Any]) -> None:
    with pytest.raises(KeyProblem):
        read_section(ImageConfig, keys)


def test_a_plan_survives_its_message() -> None:
    made = plan(std=[1, 2, 3])
    assert DecodePlan.from_message(made.message()) == made
    assert replace(made, height=1) != made
