"""`popgate infer` against a real gateway, in every encoding.

Covers: plugins/tools/src/popgate_tools/options.py.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.app.cli.calls import Call
from tests.app.served import ServedGateway
from tests.support import file_size_limit

ENCODINGS = ["json", "msgpack", "binary", "npy"]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_literal_values(popgate: Call, gateway: ServedGateway, encoding: str) -> None:
    done = popgate(
        "infer", "affine", "--url", gateway.url, "-e", encoding,
        "--input", "input=[[1, 2, 3, 4], [0, 0, 0, 0.5]]",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert done.out == ("output  FP32[2,4]\n[[3. 5. 7. 9.]\n [1. 1. 1. 2.]]\n")
    assert done.err.startswith("affine version 1, ")


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_files(
    popgate: Call, gateway: ServedGateway, tmp_path: Path, encoding: str
) -> None:
    source, target = tmp_path / "in.npy", tmp_path / "out.npy"
    data = np.random.default_rng(0).random((5, 4), np.float32)
    np.save(source, data.astype(np.float64))
    done = popgate(
        "infer", "affine", "--url", gateway.url, "-e", encoding,
        "-i", f"input={source}", "-o", f"output={target}",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert done.out == f"output  FP32[5,4] → {target}\n"
    np.testing.assert_allclose(np.load(target), data * 2 + 1, rtol=1e-6)


def test_files_that_cannot_be_written(
    popgate: Call, gateway: ServedGateway, tmp_path: Path
) -> None:
    source, target = tmp_path / "in.npy", tmp_path / "out.npy"
    np.save(source, np.ones((20_000, 4), np.float32))
    with file_size_limit(1 << 16):
        done = popgate(
            "infer", "affine", "--url", gateway.url,
            "-i", f"input={source}", "-o", f"output={target}",
        )  # fmt: skip
    assert done.code == 1
    assert f"{target}: not written completely; the disk may be full" in done.err
    assert not target.exists()


def test_archives(popgate: Call, gateway: ServedGateway, tmp_path: Path) -> None:
    one, other, none = (tmp_path / f"{n}.npz" for n in ("one", "other", "none"))
    np.savez(one, input=np.ones((1, 4)))
    np.savez(other, a=np.ones((1, 4)), b=np.zeros(3))
    none.write_bytes(b"not an archive")
    for value in (one, f"input={one}"):
        done = popgate("infer", "affine", "--url", gateway.url, "-i", str(value))
        assert done.out == "output  FP32[1,4]\n[[3. 3. 3. 3.]]\n"
    for value, said in (
        (other, "no input 'a'; no input 'b'; --input input=… is missing"),
        (f"input={other}", "its arrays are a, b"),
        (none, "cannot be read"),
    ):
        done = popgate("infer", "affine", "--url", gateway.url, "-i", str(value))
        assert done.code == 2
        assert said in done.err


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_text(popgate: Call, gateway: ServedGateway, encoding: str) -> None:
    done = popgate(
        "infer", "text", "--url", gateway.url, "-e", encoding,
        "-i", 'input=["Grüße", ""]',
    )  # fmt: skip
    assert done.code == 0, done.err
    assert done.out == "output  BYTES[2]\n['Grüße!' '!']\n"


def test_one_row_gets_its_batch_dimension(
    popgate: Call, gateway: ServedGateway
) -> None:
    done = popgate("infer", "affine", "--url", gateway.url, "-i", "input=[1, 2, 3, 4]")
    assert "output  FP32[1,4]" in done.out
    done = popgate("infer", "text", "--url", gateway.url, "-i", "input=hello")
    assert "['hello!']" in done.out


def test_several_inputs_and_a_version(popgate: Call, gateway: ServedGateway) -> None:
    done = popgate(
        "infer", "weighted", "--url", gateway.url,
        "-i", "A=[[1,1,1],[1,1,1]]", "-i", "B=[[0,0,0],[1,1,1]]",
    )  # fmt: skip
    assert done.out == "output  FP32[2,3]\n[[0. 1. 2.]\n [4. 5. 6.]]\n"
    done = popgate(
        "infer", "many", "--version", "1", "--url", gateway.url,
        "-i", "input=[1, 2, 3, 4]",
    )  # fmt: skip
    assert "[[0. 0. 0. 0.]]" in done.out
    assert "many version 1" in done.err


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["none"], 1, "unknown model: 'none' is not found (status 404, request "),
        ([""], 2, "the server does not describe the inputs of the model ''"),
        (["broken"], 1, "broken is UNAVAILABLE: version 1: broken.popef"),
        (["affine"], 2, "--input input=… is missing. affine takes: input FP32[-1,4]"),
        (["affine", "-i", "x=1"], 2, "no input 'x'"),
        (["affine", "-i", "input"], 2, "--input input: expected NAME=VALUE"),
        (["affine", "-i", "input=[[1,2],[3]]"], 2, "nested lists differ in length"),
        (["affine", "-i", "input=what"], 2, "neither a .npy or .npz file nor"),
        (["affine", "-i", "input=none.npy"], 2, "none.npy cannot be read"),
        (["affine", "-i", 'input=["a"]'], 2, "expected FP32, got values of"),
        (["affine", "-i", "input=[1e39, 2, 3, 4]"], 2, "too large for FP32"),
        (["affine", "--timeout", "nan"], 2, "timeout"),  # Click's text, or the client's
        (["affine", "--timeout", "inf"], 2, "Invalid value for '--timeout'"),
        (["affine", "-i", "input=[[1, 2, 3]]"], 1, "(status 400, request "),
        (["gather", "-i", "index=[0.5]"], 2, "do not fit INT64"),
        (["gather", "-i", "index=[99]"], 1, "(status "),
        (["affine", "-e", "xml", "-i", "input=[1,2,3,4]"], 2, "expected one of json"),
        (
            ["affine", "-i", "input=[1,2,3,4]", "-o", "z=f"],
            2,
            "--output z: the model has no such output",
        ),
        (["weighted", "-e", "npy", "-i", "A=[[1]]", "-i", "B=[[1]]"], 2, "one tensor"),
    ],
)
def test_mistakes(
    popgate: Call, gateway: ServedGateway, arguments: list[str], code: int, text: str
) -> None:
    done = popgate("infer", *arguments, "--url", gateway.url)
    assert text in done.err
    assert done.code == code


def test_nobody_there(popgate: Call) -> None:
    done = popgate("infer", "m", "--url", "http://127.0.0.1:1")
    assert done.code == 1
    assert "that `popgate serve` runs there" in done.err
    assert popgate("infer", "m", "--url", "http://x:port").code == 2
