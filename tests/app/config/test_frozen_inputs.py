"""Values of frozen inputs, as they are written in a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.config.config_keys import ModelConfigError
from app.config.frozen_inputs import frozen_arrays, with_frozen_files
from app.config.model_config import parse_model_config
from app.config.model_options import save_folder
from popef_io import DataType, Model, load_model
from tests.engine import models


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return load_model(models.weighted(tmp_path / "m.popef"))


def _checked(values: dict[str, Any]) -> Mapping[str, Any]:
    return parse_model_config({"frozen_inputs": values}).frozen_inputs


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2, np.full((2, 3), 2)),
        (0.5, np.full((2, 3), 0.5)),
        ([[1, 2, 3], [4, 5, 6]], np.arange(1, 7).reshape(2, 3)),
        ([[1, 2.5, 3], [4, 5, 6]], np.array([[1, 2.5, 3], [4, 5, 6]])),
    ],
)
def test_values(model: Model, value: Any, expected: Any) -> None:
    (array,) = frozen_arrays(model, _checked({"B": value})).values()
    assert array.dtype == np.float32
    assert np.array_equal(array, expected)


def test_files(model: Model, tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", np.ones((2, 3), np.float32))
    values = with_frozen_files(_checked({"B": "b.npy"}), tmp_path)
    assert np.array_equal(frozen_arrays(model, values)["B"], np.ones((2, 3)))
    assert values == with_frozen_files({"B": "b.npy"}, tmp_path)
    np.save(tmp_path / "b.npy", np.ones((3, 3), np.float32))
    assert values != with_frozen_files({"B": "b.npy"}, tmp_path)
    (tmp_path / "b.npy").write_bytes(b"no array")
    with pytest.raises(ValueError, match=r"frozen_inputs\.B"):
        frozen_arrays(model, with_frozen_files({"B": "b.npy"}, tmp_path))
    for name, words in (("../x.npy", "outside the model's"), ("c.npy", "No such file")):
        with pytest.raises(ValueError, match=words):
            with_frozen_files({"B": name}, tmp_path)


def test_pickles_are_not_read(model: Model, tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"frozen_inputs\.B"):
        frozen_arrays(model, with_frozen_files({"B": "b.npy"}, tmp_path))


@pytest.mark.parametrize("value", ["b", {"a": 1}, None, "b.npz"])
def test_what_is_no_value(value: Any) -> None:
    with pytest.raises(ModelConfigError, match="'B'"):
        _checked({"B": value})


@pytest.mark.parametrize(
    ("value", "words"), [(["a"], "expected numbers"), ([[1], [2, 3]], "inhomogeneous")]
)
def test_what_does_not_suit(model: Model, value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        frozen_arrays(model, {"B": value})
    with pytest.raises(ValueError, match="'C'; the model's inputs are A, B, weights"):
        frozen_arrays(model, {"C": 1})


def test_numbers_that_the_type_does_not_have(tmp_path: Path) -> None:
    path = models.gather(tmp_path / "m.popef")
    model = load_model(path)
    assert model.inputs[0].tensor_info.data_type is DataType.S64
    with pytest.raises(ValueError, match="some values are not S64"):
        frozen_arrays(model, {"index": [0.5]})
    assert frozen_arrays(model, {"index": [1.0]})["index"].tolist() == [1]


def test_where_state_is_saved(tmp_path: Path) -> None:
    assert save_folder("state", tmp_path) == str(tmp_path / "state")
    assert save_folder(str(tmp_path.parent / "x"), tmp_path) == str(
        tmp_path.parent / "x"
    )
    for name in (".", "1", "1/state", str(tmp_path)):
        with pytest.raises(ValueError, match="the folder of the model's versions"):
            save_folder(name, tmp_path)
