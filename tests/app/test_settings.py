"""Where settings come from and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from app.settings import Settings, parse_device_wait
from engine import DeviceWaitStrategy


@pytest.mark.parametrize(
    ("text", "seconds"), [("no-wait", 0.0), ("forever", None), ("2.5", 2.5), ("0", 0.0)]
)
def test_device_wait(text: str, seconds: float | None) -> None:
    assert parse_device_wait(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1", "nan", "inf"])
def test_what_is_no_device_wait(text: str) -> None:
    with pytest.raises(ValueError, match="must be no-wait, forever or a number"):
        parse_device_wait(text)


def test_device_wait_config() -> None:
    assert Settings().device_wait_config.strategy is DeviceWaitStrategy.NO_WAIT
    config = Settings(device_wait="5", device_wait_sleep=0.5).device_wait_config
    assert config.strategy is DeviceWaitStrategy.WAIT_WITH_TIMEOUT
    assert (config.timeout, config.sleep_time) == (5.0, 0.5)
    forever = Settings(device_wait="forever").device_wait_config
    assert forever.strategy is DeviceWaitStrategy.WAIT_FOREVER


def test_environment_and_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPGATE_PORT", "9000")
    monkeypatch.setenv("POPGATE_MAX_BODY_SIZE", "1MiB")
    monkeypatch.setenv("POPGATE_API_KEY", "secret")
    settings = Settings(host="::1")
    assert (settings.port, settings.max_body_size) == (9000, 1 << 20)
    assert settings.host == "::1"
    assert Settings(port=9001).port == 9001
    assert "secret" not in repr(settings)


def test_a_raised_body_size_raises_the_limits_of_json() -> None:
    """Lists of numbers fill a large body as well as strings do."""
    usual, raised = Settings().limits, Settings(max_body_size=128 << 20).limits
    lowered = Settings(max_body_size=1 << 20).limits
    assert raised.max_body_bytes == raised.max_json_bytes == 128 << 20
    assert raised.max_document_values == 2 * usual.max_document_values
    assert lowered.max_document_values == usual.max_document_values
    assert lowered.max_json_bytes == usual.max_json_bytes


def test_devices_are_checked_where_they_come_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POPGATE_DEVICES", "cpu:2-3")
    assert Settings().devices == "cpu:2-3"
    assert Settings(devices="cpu:1").devices == "cpu:1"
    monkeypatch.setenv("POPGATE_DEVICES", "cpus")
    with pytest.raises(ValidationError, match="invalid devices 'cpus'"):
        Settings()


def test_defaults_are_safe() -> None:
    settings = Settings()
    assert settings.host == "127.0.0.1"
    assert settings.api_key is None
    assert settings.model_repository == Path("models")


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        Settings().port = 1


@pytest.mark.parametrize(
    "values",
    [
        {"port": 65536},
        {"port": -1},
        {"max_body_size": 0},
        {"max_body_size": "lots"},
        {"request_timeout": 0},
        {"request_timeout": float("inf")},
        {"shutdown_timeout": -1},
        {"shutdown_timeout": 1e308},
        {"load_timeout": 2e6},
        {"device_timeout": float("nan")},
        {"log_level": "loud"},
        {"api_key": " "},
        {"device_wait": "later"},
        {"device_wait": "1e308"},
        {"base_path": "some"},
        {"base_path": "/v1"},
        {"base_path": "/v2/models/"},
        {"base_path": "/metrics"},
        {"load_threads": 0},
        {"unknown": 1},
    ],
)
def test_values_that_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Settings(**values)  # type: ignore[arg-type]


def test_a_base_path_may_begin_as_paths_of_the_api() -> None:
    assert Settings(base_path="/v1/shop/").base_path == "/v1/shop"
    assert Settings(base_path="/v10").base_path == "/v10"


def test_models_to_load_are_named_in_any_way(monkeypatch: pytest.MonkeyPatch) -> None:
    mode: Any = {"model_control_mode": "explicit"}
    named: Any = (["a", "b"], ["a,b"], ["a, b,"], "a,b", ("a", "b"))
    assert {Settings(load_model=names, **mode).load_model for names in named} == {
        ("a", "b")
    }
    monkeypatch.setenv("POPGATE_LOAD_MODEL", "a,b")
    wrong: Any = [1]
    assert Settings(**mode).load_model == ("a", "b")
    with pytest.raises(ValueError, match="load_model"):
        Settings(load_model=wrong, **mode)


def test_a_variable_holds_one_restriction_or_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = "logging:admin-key=a[,b]", "trace:admin-key=c"
    for text, groups in (
        (one, ("logging",)),
        (json.dumps([one, other]), ("logging", "trace")),
    ):
        monkeypatch.setenv("POPGATE_RESTRICTED_API", text)
        assert Settings().restrictions.groups == groups
    for text in ("logging", '["logging:admin-key=a"', "[1]", "{}", " "):
        monkeypatch.setenv("POPGATE_RESTRICTED_API", text)
        with pytest.raises(ValidationError, match="restricted_api"):
            Settings()


def test_only_a_variable_holds_several_models(monkeypatch: pytest.MonkeyPatch) -> None:
    path: Any = ["models/a,b.onnx"]
    assert Settings(model=path).model == ("models/a,b.onnx",)
    monkeypatch.setenv("POPGATE_MODEL", "a=b.onnx, c.onnx")
    assert Settings().model == ("a=b.onnx", "c.onnx")
