"""The examples of `popxl`: trained, sampled from, exported and served."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import popxl
from tests.app.served import ServedGateway

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "popxl_programs"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        f"popxl_{name}", FOLDER / f"{name}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_linear_regression(capsys: pytest.CaptureFixture[str]) -> None:
    w, b = example("linear_regression").main()
    np.testing.assert_allclose(w.ravel(), [1, -2, 0.5], atol=1e-3)
    np.testing.assert_allclose(b, [0.25], atol=1e-3)
    assert "step 100" in capsys.readouterr().out


def test_digits(tmp_path: Path) -> None:
    assert example("digits").main(str(tmp_path / "digits.popef")) > 0.8
    assert (tmp_path / "digits.popef").is_file()


def test_a_gpt_is_trained_sampled_and_served(tmp_path: Path) -> None:
    gpt: Any = example("gpt")
    text = gpt.main(str(tmp_path / "gpt.popef"))
    assert "sat on the" in text
    trained = gpt.start()
    ir, xs, out = gpt.program({k: np.float32(v) for k, v in trained.items()})
    with popxl.Session(ir) as session:
        first = gpt.sample(session, xs, out, "the ", 3)
    assert len(first) == 7
    codes = [gpt.LETTERS.index(letter) for letter in (text + text)[: gpt.LENGTH]]
    with ServedGateway(tmp_path) as gateway:
        answer = gateway.wait_ready().client.post(
            "/v1/models/gpt/infer", json={"inputs": {"text": [codes]}}
        )
    assert answer.status_code == 200, answer.text
    (scores,) = answer.json()["outputs"]
    assert scores["name"] == "scores"
    assert scores["shape"] == [1, gpt.LENGTH, len(gpt.LETTERS)]
    guess = np.array(scores["data"], np.float32).reshape(gpt.LENGTH, -1)[-1].argmax()
    assert gpt.LETTERS[guess] == (text + text)[gpt.LENGTH]


def test_data_parallel_digits() -> None:
    digits: Any = example("data_parallel_digits")
    expected, weights = digits.train(1)
    assert np.mean(expected[-10:]) < expected[0] / 2
    for replicas in (2, 4):
        found, others = digits.train(replicas)
        np.testing.assert_allclose(found, expected, rtol=1e-4)
        for name, value in weights.items():
            np.testing.assert_allclose(others[name], value, atol=1e-4)
