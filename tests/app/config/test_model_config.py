"""`config.toml`: every key, every mistake.

Covers: app/config/version_policy.py.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from app.config.config_keys import ModelConfigError
from app.config.model_config import ModelConfig, parse_model_config
from app.config.model_options import read_options
from app.config.version_policy import VersionPolicy


def test_every_option_says_what_it_is_for() -> None:
    assert all(item.metadata["purpose"] for item in fields(ModelConfig))


def test_nothing_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("")
    assert read_options("m", path.parent, None, path).config == ModelConfig()


def test_everything_can_be_said(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(
        """
        instances = 2
        devices = [0, 1]
        batching = true
        max_batch_size = 32
        max_queue_delay = 0.002
        max_queue_size = 7
        channel_memory = "1MiB"
        timeout = 5
        check_package_hash = false
        versions = [1, 3]
        [example]
        x = [[1.0, 2.0]]
        """
    )
    assert read_options("m", path.parent, None, path).config == ModelConfig(
        instances=2,
        devices=(0, 1),
        batching=True,
        max_batch_size=32,
        max_queue_delay=0.002,
        max_queue_size=7,
        channel_memory=1 << 20,
        timeout=5.0,
        check_package_hash=False,
        versions=VersionPolicy(specific=(1, 3)),
        example={"x": [[1.0, 2.0]]},
    )


def test_unknown_key_names_it_and_the_known_ones() -> None:
    with pytest.raises(ModelConfigError) as caught:
        parse_model_config({"max_batchsize": 3})
    text = str(caught.value)
    assert "config.toml: unknown key 'max_batchsize'" in text
    assert "did you mean max_batch_size?" in text
    with pytest.raises(ModelConfigError) as caught:
        parse_model_config({"qqq": 3})
    assert all(item.name in str(caught.value) for item in fields(ModelConfig))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("instances", 0),
        ("instances", 1025),
        ("instances", True),
        ("instances", 1.0),
        ("devices", []),
        ("devices", [0, 0]),
        ("devices", [-1]),
        ("devices", "cpu:0"),
        ("batching", "yes"),
        ("batching", 1),
        ("max_batch_size", -1),
        ("max_queue_delay", 61),
        ("max_queue_delay", float("nan")),
        ("max_queue_size", 0),
        ("channel_memory", "1KiB"),
        ("channel_memory", True),
        ("channel_memory", "big"),
        ("timeout", 0),
        ("timeout", "1s"),
        ("check_package_hash", "no"),
        ("versions", "newest"),
        ("versions", [0]),
        ("versions", []),
        ("versions", {"latest": 0}),
        ("versions", {"newest": 1}),
        ("example", [1]),
    ],
)
def test_values_that_are_refused(key: str, value: object) -> None:
    with pytest.raises(ModelConfigError, match=f"config.toml: {key} must be "):
        parse_model_config({key: value})


def test_more_devices_than_instances() -> None:
    with pytest.raises(ModelConfigError, match="2 devices for 1 instance;"):
        parse_model_config({"devices": [0, 1]})


def test_a_timeout_beyond_the_longest() -> None:
    level = {"level": 1, "timeout": 50.0}
    keys = {"priority_levels": 2, "priority": [level]}
    assert parse_model_config({**keys, "max_timeout": 50.0}).priority[0].timeout == 50
    what = r"timeout of level 1 is 50 s, which exceeds max_timeout \(5 s\)"
    with pytest.raises(ModelConfigError, match=what):
        parse_model_config({**keys, "max_timeout": 5.0})


@pytest.mark.parametrize("text", ["instances = ", "\udcff", "[" * 5000])
def test_what_is_no_toml(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ModelConfigError, match=r"config\.toml cannot be read"):
        read_options("m", path.parent, None, path)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    with path.open("wb") as file:
        file.truncate(1 << 32)
    with pytest.raises(ModelConfigError, match="larger than"):
        read_options("m", path.parent, None, path)
