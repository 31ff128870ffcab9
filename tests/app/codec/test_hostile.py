"""Damaged bodies: a request, or an error that is the client's; never anything else."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.codec import ModelCodec
from app.errors import RequestError, row_of
from engine import Tensor
from tests.app.codec import samples
from tests.app.codec.samples import NUMPY, WAYS_IN, Body

MODELS = {name: samples.codec(samples.model(name, (-1, 3))) for name in NUMPY}
SEEDS = [
    (datatype, WAYS_IN[way](datatype, samples.sample(datatype, (2, 3), values)))
    for datatype in NUMPY
    for values in [samples.pool(datatype)[:3]]
    for way in WAYS_IN
]


def survive(
    codec: ModelCodec,
    body: bytes,
    headers: dict[str, bytes],
    accept: bytes | None = None,
) -> None:
    """Decodes, and where that works answers; every refusal must be a 4xx."""
    try:
        request = Body(body, headers).decode(codec, accept, cut=97)
        tensor = request.inputs["x"]
        assert isinstance(tensor, Tensor)
        assert tensor.nbytes == sum(map(len, tensor.parts))
        assert tensor.numpy().shape == tensor.shape
        codec.encode(request, {"y": tensor})
    except RequestError as caught:
        refusal = caught
    else:
        return
    assert 400 <= row_of(refusal).status < 500
    assert str(refusal)


def mutate(data: bytes, chance: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        kind = chance.randrange(5)
        at = chance.randrange(len(out) + 1)
        if kind == 0 and out:
            out[at % len(out)] = chance.randrange(256)
        elif kind == 1:
            out[at:at] = chance.choice(FRAGMENTS)
        elif kind == 2:
            del out[at : at + chance.randint(1, 8)]
        elif kind == 3:
            del out[at:]
        else:
            other = chance.randrange(len(out) + 1)
            out[at:at] = out[other : other + chance.randint(1, 40)]
    return bytes(out)


FRAGMENTS = [
    *(
        b"null",
        b"true",
        b"-1",
        b"1e400",
        b"NaN",
        b'"',
        b"{",
        b"}",
        b"[",
        b"]",
        b":",
        b",",
    ),
    *(b"9" * 30, b"\x00", b"\xff" * 4, b"\xc1", b"\xdd\xff\xff\xff\xff", b"\xd6\xff"),
    *(b'"data":', b'"shape":[', b'"parameters":{"binary_data_size":9999999999}'),
    *(b'"\\ud800"', b"\xde\xff\xff", b"4611686018427387904", b"'shape': (1,", b"O"),
]
LENGTHS = [None, b"0", b"10", b"-1", b"4294967296"]


@pytest.mark.parametrize("seed", range(40))
def test_random_damage(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(120):
        datatype, body = chance.choice(SEEDS)
        headers = dict(body.headers)
        if chance.random() < 0.2:
            length = chance.choice(LENGTHS)
            headers.pop("inference-header-content-length", None)
            if length is not None:
                headers["inference-header-content-length"] = length
        if chance.random() < 0.2:
            headers["content-type"] = chance.choice(
                [b"application/json", b"application/msgpack", b"application/x-npy"]
            )
        accept = chance.choice([None, *samples.WAYS_OUT.values()])
        survive(MODELS[datatype], mutate(body.data, chance), headers, accept)


@pytest.mark.parametrize("way", WAYS_IN)
def test_cut_off_at_every_byte(way: str) -> None:
    body = WAYS_IN[way](
        "FP32", samples.sample("FP32", (2, 3), samples.pool("FP32")[:3])
    )
    codec = MODELS["FP32"]
    for end in range(len(body.data)):
        with pytest.raises(RequestError):
            Body(body.data[:end], body.headers).decode(codec)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=64), st.sampled_from([None, *LENGTHS]))
def test_any_bytes(data: bytes, length: bytes | None) -> None:
    headers = {} if length is None else {"inference-header-content-length": length}
    survive(MODELS["FP32"], data, headers)


HEAD = b'{"inputs":[{"name":"x","datatype":"FP32","shape":'
ABSURD = [
    HEAD + b'[4611686018427387904,3],"data":[1]}]}',
    HEAD + b'[2000000000,3],"data":[1]}]}',
    HEAD + b'[600000000,3],"data":[1]}]}',
    HEAD + b'[600000000,3],"parameters":{"binary_data_size":7200000000}}]}',
    b"[" * 900 + b"]" * 900,
    b'{"a":' * 900 + b"1" + b"}" * 900,
    b'{"inputs":' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"inputs":{"x":' + b"[" * 900 + b"]" * 900 + b"}}",
    b"\x81\xa6inputs\x81\xa1x" + b"\xdd\xff\xff\xff\xff" * 200,
    b"\x81\xa6inputs\x81\xa1x" + b"\xdd\x00\x0f\xff\xff" * 200 + b"\x01" * 100_000,
    b"\x93NUMPY\x01\x00\x76\x00"
    + b"{'descr': '<f4', 'fortran_order': False, 'shape': (600000000, 3), }".ljust(
        0x76 - 41
    ),
    b"\x93NUMPY\x02\x00\xff\xff\xff\x7f",
]


@pytest.mark.parametrize("body", ABSURD)
def test_absurd_sizes_allocate_nothing(body: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(RequestError) as caught:
            MODELS["FP32"].decode(None, None, None, [body])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 400 <= row_of(caught.value).status < 500
    assert peak < 20 << 20
