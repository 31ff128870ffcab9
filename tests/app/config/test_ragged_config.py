"""``[ragged]``: how it is read, and what a served model makes of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import save_model

from app.config.config_keys import ModelConfigError
from app.config.model_config import parse_model_config
from tests.app.served import ServedGateway
from tests.engine.worker.test_ragged import expected, network, row

SECTION = "[ragged]\ninputs = {ids = 0, mask = 0}\n"


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"inputs": ["ids"]}, "a table of input name to a number"),
        ({"inputs": {"ids": "pad"}}, "a table of input name to a number"),
        ({"inputs": {"ids": True}}, "a table of input name to a number"),
        ({"inputs": {"ids": float("nan")}}, "a table of input name to a number"),
        ({"inputs": {"ids": 10**400}}, "a table of input name to a number"),
        ({"max_padding": 1.0}, "max_padding"),
        ({"max_batch_tokens": -1}, "max_batch_tokens"),
        ({"inptus": {}}, "inptus"),
    ],
)
def test_what_makes_no_sense_is_named(section: Any, message: str) -> None:
    with pytest.raises(ModelConfigError, match=message):
        parse_model_config({"ragged": section})


def test_a_batch_is_limited_by_tokens_or_has_preferred_sizes() -> None:
    with pytest.raises(ModelConfigError, match=r"\[ragged\] and preferred"):
        parse_model_config({"ragged": {}, "preferred_batch_sizes": [4]})


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("sequence", "[ragged] and [sequence] exclude each other; remove one"),
        ("responses", "[ragged] and [responses] exclude each other; remove one"),
    ],
)
def test_rows_that_belong_to_more_requests_are_not_padded(
    section: str, message: str
) -> None:
    with pytest.raises(ModelConfigError, match=re.escape(message)):
        parse_model_config({"ragged": {}, section: {}})


def test_a_model_is_served_and_says_how_its_rows_run(tmp_path: Path) -> None:
    for name, masked in (("masked", True), ("unmasked", False)):
        folder = tmp_path / "models" / name
        (folder / "1").mkdir(parents=True)
        save_model(network(masked=masked), folder / "1" / "model.onnx")
        (folder / "config.toml").write_text(SECTION)
    cache = ("--cache-dir", str(tmp_path / "cache"))
    with ServedGateway(tmp_path / "models", "--devices", "cpu:1", *cache) as gateway:
        gateway.wait_ready()
        get = gateway.client.get
        reasons = {
            name: get(f"/v1/models/{name}").json()["batching_reason"]
            for name in ("masked", "unmasked")
        }
        given = row(7)
        inputs = {name: array.tolist() for name, array in given.items()}
        answer = gateway.client.post("/v1/models/masked/infer", json={"inputs": inputs})
    assert "rows of different lengths run together" in reasons["masked"]
    assert "rows of different lengths run alone" in reasons["unmasked"]
    found = {output["name"]: output for output in answer.json()["outputs"]}
    assert found["tokens"]["shape"] == [1, 7, 4]
    np.testing.assert_allclose(
        np.reshape(found["mean"]["data"], (1, 4)), expected(given)["mean"], rtol=1e-4
    )
