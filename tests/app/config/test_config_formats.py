"""A load request's configuration, before a plugin translates it."""

from __future__ import annotations

import pytest

from app.config.config_formats import translate_request
from app.config.config_keys import ModelConfigError


def test_our_keys_are_options() -> None:
    assert translate_request('{"instances": 2}', "m", "x").options == {"instances": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ('{"x": "\\ud800"}', "is not JSON"),
        ("[]", "must be a JSON object, got list"),
        ("[" * 100_000, "is not JSON"),
        (" " * (1 << 21), "larger than"),
    ],
)
def test_json_that_is_none(text: str, message: str) -> None:
    with pytest.raises(ModelConfigError) as caught:
        translate_request(text, "m", "x")
    assert message in str(caught.value)
