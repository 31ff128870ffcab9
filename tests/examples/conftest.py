"""The examples are scripts, not a package: their folders go on the path."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
for folder in (EXAMPLES, EXAMPLES / "digits"):
    sys.path.insert(0, str(folder))


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a real gateway that serves the digits, and a model that errs on them."""
    from serving import serve

    digits = EXAMPLES / "digits" / "digits.onnx"
    erring = tmp_path_factory.mktemp("erring") / "erring.onnx"
    erring.write_bytes(never_nine(digits))
    with serve({"digits": digits, "erring": erring}) as url:
        yield url


def never_nine(path: Path) -> bytes:
    """Return the model with the last bias changed so that nothing looks like a 9."""
    import numpy as np
    import onnx

    model = onnx.load(path)
    (bias,) = (i for i in model.graph.initializer if i.name == "dense2.bias")
    values = onnx.numpy_helper.to_array(bias).copy()
    values[9] = np.float32(-1e3)
    bias.CopyFrom(onnx.numpy_helper.from_array(values, bias.name))
    content: bytes = model.SerializeToString()
    return content
