"""One frozen `Settings`, read from the environment (prefix ``POPGATE_``) in one place.

Command-line options win over the environment, the environment over the defaults.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from app.config.extensions import check_extensions
from app.config.profiles import PROFILES
from app.config.restrictions import Restrictions
from app.observe.tracing import TraceSettings
from app.sizes import parse_size
from engine import (
    DeviceWaitConfig,
    DeviceWaitStrategy,
    InvalidConfig,
    named_devices,
)

LogLevel = Literal["debug", "info", "warning", "error", "critical"]
LogFormat = Literal["text", "json"]
TraceLevel = Literal["off", "timestamps", "tensors"]
ControlModeName = Literal["managed", "none", "poll", "explicit"]

_BASE_PATH = re.compile(r"(/[A-Za-z0-9_.~-]+){1,20}")


def parse_device_wait(value: str) -> float | None:
    """Seconds to wait for a device: 0 for ``no-wait``, None for ``forever``."""
    text = value.strip().lower()
    if text == "no-wait":
        return 0.0
    if text == "forever":
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0):
        msg = f"{value!r} is neither no-wait, forever nor a number of seconds"
        raise ValueError(msg)
    return seconds


def parse_names(value: object) -> object:
    """Names: a list of them, with commas between those that come in one text."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(
        isinstance(text, str) for text in texts
    ):
        return value
    names = (name.strip() for text in texts for name in text.split(","))
    return tuple(name for name in names if name)


def default_cache_dir() -> Path:
    """``$XDG_CACHE_HOME/popgate``, usually ``~/.cache/popgate``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "popgate"


Size = Annotated[int, BeforeValidator(parse_size), Field(gt=0)]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(parse_names)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Settings(BaseSettings):
    """Everything that decides how a gateway runs. Defaults are safe for one machine.

    Sizes are bytes (``64MiB`` is understood), times are seconds. A `profile` (one of
    `app.config.profiles`) changes the defaults.
    """

    model_config = SettingsConfigDict(
        env_prefix="POPGATE_", frozen=True, extra="forbid", env_ignore_empty=True
    )

    profile: Literal["triton"] | None = None

    model_repository: Path = Path("models")
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    uds: Path | None = None
    base_path: str = ""
    devices: str | None = None
    device_wait: str = "no-wait"
    device_wait_sleep: Seconds = 15.0
    device_timeout: Seconds = 10.0
    max_body_size: Size = 256 * 1024 * 1024
    request_timeout: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 60.0
    upload_timeout: Seconds = 30.0
    send_timeout: Seconds = 30.0
    transfer_memory: Annotated[int, BeforeValidator(parse_size), Field(ge=0)] = 0
    restricted_api: tuple[SecretStr, ...] = ()
    compress_responses: Literal["asked", "always", "never"] = "asked"
    api_key: SecretStr | None = None
    shutdown_timeout: Seconds = 30.0
    drain_grace: Seconds = 0.0
    load_threads: int = Field(default=4, ge=1, le=64)
    load_timeout: Positive = 300.0
    run_timeout: Seconds = 30.0
    compile_timeout: Positive = 600.0
    compile_memory: Annotated[int, BeforeValidator(parse_size), Field(ge=0)] = 0
    cache_dir: Path = Field(default_factory=default_cache_dir)
    strict_readiness: bool = False
    model_control_mode: ControlModeName = "managed"
    load_model: Names = ()
    repository_poll_secs: Annotated[float, Field(ge=0.1, le=86400)] = 15.0
    lazy: bool = False
    model_memory: Annotated[int, BeforeValidator(parse_size), Field(ge=0)] = 0
    server_name: str = Field(default="popgate", min_length=1, max_length=100)
    error_statuses: Literal["http", "triton"] = "http"
    server_extensions: Annotated[str, AfterValidator(check_extensions)] = ""
    server_version: str | None = Field(default=None, min_length=1, max_length=100)
    allow_shared_memory: bool = False
    shared_memory_limit: Size = 16 * 1024**3
    shared_memory_lease: Seconds = 3600.0
    shared_memory_prefix: str = Field(default="", max_length=200)
    trace_file: Path | None = None
    trace_level: TraceLevel = "off"
    trace_rate: int = Field(default=1000, ge=1)
    trace_count: int = Field(default=-1, ge=-1)
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What is given, the environment, and what the profile sets: first one wins."""
        name = init_settings().get("profile") or env_settings().get("profile")
        profile = PROFILES.get(str(name))
        defaults = dict(profile.settings) if profile is not None else {}
        source = InitSettingsSource(settings_cls, defaults)
        return init_settings, env_settings, source

    @field_validator("base_path")
    @classmethod
    def _check_base_path(cls, value: str) -> str:
        path = value.rstrip("/")
        if path and not _BASE_PATH.fullmatch(path):
            msg = f"{value!r} is no path; write it as in /some/base"
            raise ValueError(msg)
        return path

    @field_validator("devices")
    @classmethod
    def _check_devices(cls, value: str | None) -> str | None:
        try:
            named_devices(value)
        except InvalidConfig as e:
            raise ValueError(str(e)) from None
        return value

    @field_validator("device_wait")
    @classmethod
    def _check_device_wait(cls, value: str) -> str:
        parse_device_wait(value)
        return value

    @field_validator("log_level", "log_format", "trace_level", mode="before")
    @classmethod
    def _lower(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @field_validator("api_key")
    @classmethod
    def _check_api_key(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not value.get_secret_value().strip():
            msg = "an empty key protects nothing; leave it out instead"
            raise ValueError(msg)
        return value

    @field_validator("load_model")
    @classmethod
    def _check_load_model(
        cls, value: tuple[str, ...], info: ValidationInfo
    ) -> tuple[str, ...]:
        if value and info.data.get("model_control_mode", "explicit") != "explicit":
            msg = "models are named only where --model-control-mode is explicit"
            raise ValueError(msg)
        return value

    @field_validator("restricted_api")
    @classmethod
    def _check_restricted_api(
        cls, value: tuple[SecretStr, ...]
    ) -> tuple[SecretStr, ...]:
        Restrictions(rule.get_secret_value() for rule in value)
        return value

    @property
    def restrictions(self) -> Restrictions:
        """What parts of the API need a header."""
        return Restrictions(rule.get_secret_value() for rule in self.restricted_api)

    @model_validator(mode="after")
    def _check_trace_file(self) -> Self:
        if self.trace_level != "off" and self.trace_file is None:
            msg = "tracing needs a file that traces go to: set trace_file"
            raise ValueError(msg)
        return self

    @property
    def trace_settings(self) -> TraceSettings:
        """What is traced from the start (Triton: trace settings)."""
        levels = {"off": ("OFF",), "timestamps": ("TIMESTAMPS",)}
        level = levels.get(self.trace_level, ("TIMESTAMPS", "TENSORS"))
        return TraceSettings(level, self.trace_rate, self.trace_count)

    @property
    def device_wait_config(self) -> DeviceWaitConfig:
        """How attaching devices retries (Model Runtime: ``DeviceWaitConfig``)."""
        seconds = parse_device_wait(self.device_wait)
        if seconds is None:
            return DeviceWaitConfig(
                DeviceWaitStrategy.WAIT_FOREVER, sleep_time=self.device_wait_sleep
            )
        if seconds == 0:
            return DeviceWaitConfig(sleep_time=self.device_wait_sleep)
        return DeviceWaitConfig.with_timeout(seconds, self.device_wait_sleep)
