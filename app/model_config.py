"""``config.toml`` of a model: how it is run. Every key is optional.

An unknown key, a wrong type or a value out of range is an error that names the key, so
that a typing mistake never passes for a setting. `docs/configuration.md` lists them.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from app.settings import parse_size

MAX_CONFIG_BYTES = 1 << 20  # a page of options; bounds what a stray file can cost


class ModelConfigError(Exception):
    """A ``config.toml`` that cannot be used; the message names file and key."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The options of one model, as written or by default.

    `instances` replicas of the model, spread over the attached devices or put on
    `devices` (indices into the attached ones). `batching` None leaves the decision to
    what the compiler has shown. `max_batch_size` rows (0: as the model says),
    `max_queue_delay` and `timeout` in seconds (timeout None: the server's),
    `max_queue_size` requests. `versions` is "all", "latest" or the numbers to serve.
    `example` gives input values for the documentation page.
    """

    instances: int = 1
    devices: tuple[int, ...] = ()
    batching: bool | None = None
    max_batch_size: int = 0
    max_queue_delay: float = 0.0
    max_queue_size: int = 1024
    channel_memory: int = 256 * 1024 * 1024
    timeout: float | None = None
    check_package_hash: bool = True
    versions: str | tuple[int, ...] = "all"
    example: Mapping[str, Any] = field(default_factory=dict)

    def serves(self, version: int, latest: int) -> bool:
        """Whether `version` is to be served where `latest` is the highest there is."""
        if self.versions == "all":
            return True
        if self.versions == "latest":
            return version == latest
        return version in self.versions


def load_model_config(path: Path) -> ModelConfig:
    """Reads a ``config.toml``. Raises `ModelConfigError`."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            msg = f"{path.name} is larger than {MAX_CONFIG_BYTES} bytes"
            raise ModelConfigError(msg)
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as e:
        msg = f"{path.name} cannot be read: {e}"
        raise ModelConfigError(msg) from e
    return parse_model_config(document, path.name)


def parse_model_config(
    document: Mapping[str, Any], name: str = "config.toml"
) -> ModelConfig:
    """The `ModelConfig` of a parsed document. Raises `ModelConfigError`."""
    values: dict[str, Any] = {}
    for key, value in document.items():
        check = _CHECKS.get(key)
        if check is None:
            raise ModelConfigError(f"{name}: {_unknown(key)}")
        try:
            values[key] = check(value)
        except ValueError as e:
            msg = f"{name}: {key} must be {e}, got {value!r}"
            raise ModelConfigError(msg) from None
    config = ModelConfig(**values)
    if config.devices and len(config.devices) > config.instances:
        msg = (
            f"{name}: devices names {len(config.devices)} devices for "
            f"{config.instances} instances; every instance runs on one device"
        )
        raise ModelConfigError(msg)
    return config


def _unknown(key: str) -> str:
    known = ", ".join(sorted(_CHECKS))
    close = difflib.get_close_matches(key, _CHECKS, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"unknown key {key!r}{hint}; known keys are {known}"


_Check: TypeAlias = Callable[[Any], Any]


def _integer(low: int, high: int) -> _Check:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError("a whole number")
        if not low <= value <= high:
            raise ValueError(f"between {low} and {high}")
        return value

    return check


def _seconds(low: float, high: float) -> _Check:
    def check(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError("a number of seconds")
        if not low <= value <= high:
            raise ValueError(f"between {low:g} and {high:g} seconds")
        return float(value)

    return check


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _batching(value: Any) -> bool | None:
    if value == "auto":
        return None
    if isinstance(value, bool):
        return value
    raise ValueError('"auto", true or false')


def _size(value: Any) -> int:
    wanted = 'a size in bytes or as in "256MiB", from 64KiB to 256GiB'
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(wanted)
    try:
        size = parse_size(value)
    except ValueError:
        raise ValueError(wanted) from None
    if not 1 << 16 <= size <= 1 << 38:
        raise ValueError(wanted)
    return size


def _numbers(value: Any, low: int) -> tuple[int, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("a list of whole numbers")
    check = _integer(low, 1 << 62)
    numbers = tuple(check(item) for item in value)
    if len(set(numbers)) != len(numbers):
        raise ValueError("without repetition")
    return numbers


def _devices(value: Any) -> tuple[int, ...]:
    try:
        return _numbers(value, 0)
    except ValueError:
        wanted = "a list of different indices of attached devices, as in [0, 1]"
        raise ValueError(wanted) from None


def _versions(value: Any) -> str | tuple[int, ...]:
    if value in ("all", "latest"):
        return str(value)
    try:
        return _numbers(value, 1)
    except ValueError:
        raise ValueError('"all", "latest" or a list of version numbers') from None


def _table(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("a table of input name to value")
    return value


_CHECKS: dict[str, _Check] = {
    "instances": _integer(1, 1024),
    "devices": _devices,
    "batching": _batching,
    "max_batch_size": _integer(0, 65536),
    "max_queue_delay": _seconds(0, 60),
    "max_queue_size": _integer(1, 65536),
    "channel_memory": _size,
    "timeout": _seconds(0.001, 86400),
    "check_package_hash": _boolean,
    "versions": _versions,
    "example": _table,
}
