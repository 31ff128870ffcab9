"""Messages about a wrong section [text]."""

from __future__ import annotations

from typing import Any

import pytest

from app.config.config_keys import ModelConfigError
from app.config.model_config import parse_model_config


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"max_length": -1},
            "config.toml: [text] max_length must be at least 0, got -1",
        ),
        ({"fil": "x"}, "config.toml: [text] unknown key 'fil' (did you mean file?)"),
        (3, "config.toml: text must be a table, got 3"),
    ],
)
def test_a_wrong_key_is_named_once(section: Any, message: str) -> None:
    with pytest.raises(ModelConfigError) as caught:
        parse_model_config({"text": section})
    assert str(caught.value) == message
