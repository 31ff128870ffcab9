"""Other values in a config.toml; the rest of it stays.

Covers: plugins/tools/src/popgate_tools/tune/config_file.py.
"""

from __future__ import annotations

import tomllib

import pytest

from popgate_tools.tune.config_file import with_values

VALUES = {"instances": 4, "max_queue_delay": 0.002}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "instances = 2\n",
        "# why\ninstances = 2 # two\nversions = 'latest'\n\n[example]\ninstances = 7\n",
        "versions = 'latest'",
        "[warmup]\nenabled = false",
    ],
)
def test_all_else_stays(text: str) -> None:
    made = with_values(text, VALUES, "fast")
    assert tomllib.loads(made) == {**tomllib.loads(text), **VALUES}
    assert made.startswith("# tuned by popgate: fast\ninstances = 4\n")
    assert ("# why" in made) == ("# why" in text)
    again = with_values(made, VALUES, "faster")
    assert again.count("tuned by popgate") == 1
    assert tomllib.loads(again) == tomllib.loads(made)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("instances = [\n 1,\n 2\n]\n", "cannot be replaced"),
        ('"instances" = 2\n', "cannot be replaced"),
        ("instances = \n", "Invalid value"),
    ],
)
def test_what_it_cannot_do(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        with_values(text, VALUES, "fast")
