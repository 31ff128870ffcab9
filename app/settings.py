"""One frozen `Settings`, read from the environment (prefix ``POPGATE_``) in one place.

Command-line options win over the environment, the environment over the defaults.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationInfo,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from app.config.config_keys import KeyProblem
from app.config.extensions import check_extensions
from app.config.log_config import LogLevel, read_log_config
from app.config.profiles import profile_named
from app.config.restrictions import Restrictions
from app.limits import DEFAULT_LIMITS, Limits
from app.sizes import parse_ratio, parse_size
from engine import DeviceWaitConfig, DeviceWaitStrategy, InvalidConfig, named_devices

LogFormat = Literal["text", "json"]
TraceLevel = Literal["off", "timestamps", "tensors"]
ControlModeName = Literal["managed", "none", "poll", "explicit"]

#: The most seconds of a setting. The kernel's timers end at 24 days of milliseconds.
LONGEST: Final = 1_000_000
#: The value of `error_statuses` without a profile.
HTTP_STATUSES: Final = "http"

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s,]+")
_BASE_PATH = re.compile(r"(?!/(v[12](/models)?|metrics)$)(/[A-Za-z0-9_.~-]+){1,20}")


def parse_device_wait(value: str) -> float | None:
    """Return seconds to wait for a device: 0 for ``no-wait``, None for ``forever``."""
    text = value.strip().lower()
    if text == "no-wait":
        return 0.0
    if text == "forever":
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= LONGEST:
        wanted = f"no-wait, forever or a number of seconds up to {LONGEST}"
        raise ValueError(f"{value!r} must be {wanted}")
    return seconds


def parse_names(value: object) -> object:
    """Return names as a tuple.

    A single string may hold several, separated by commas.
    """
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(
        isinstance(text, str) for text in texts
    ):
        return value
    names = (name.strip() for text in texts for name in text.split(","))
    return tuple(name for name in names if name)


def parse_models(value: object) -> object:
    """Return models as a tuple. Only those of a variable are separated by commas."""
    return parse_names(value) if isinstance(value, str) else value


def parse_rules(value: object) -> object:
    """Return the rules of a variable: one rule, or a JSON list of rules."""
    if not isinstance(value, str):
        return value
    if not value.lstrip().startswith("["):
        return (value,)
    try:
        return json.loads(value)
    except ValueError:  # whose text may show a secret
        raise ValueError("several restrictions are written as a JSON list") from None


def accepted_by(check: Callable[[Any], object]) -> AfterValidator:
    """Return a validator of values that `check` accepts. It raises ValueError for
    others.
    """

    def keep(value: Any) -> Any:
        if value is not None:
            check(value)
        return value

    return AfterValidator(keep)


def check_statuses(value: str) -> None:
    """Raise ValueError if `value` is not `HTTP_STATUSES` and no profile."""
    if value != HTTP_STATUSES:
        profile_named(value)


def base_path_of(value: str) -> str:
    """Return a path without a slash at its end. Raises ValueError."""
    path = value.rstrip("/")
    if path and not _BASE_PATH.fullmatch(path):
        raise ValueError(f"{value!r} must be a path like /some/base, not the API's")
    return path


def check_proxies(names: tuple[str, ...]) -> None:
    for name in names:
        if name != "unix":
            ipaddress.ip_network(name, strict=False)


def check_origins(origins: tuple[str, ...]) -> None:
    for origin in origins:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            msg = (
                f"{origin!r} must be * or an origin as browsers send it, without "
                "a path: https://shop.example or http://localhost:3000"
            )
            raise ValueError(msg)


def check_devices(value: str) -> None:
    try:
        named_devices(value)
    except InvalidConfig as e:
        raise ValueError(str(e)) from None


def check_secret(value: SecretStr) -> None:
    if not value.get_secret_value().strip():
        raise ValueError("an empty key protects nothing; leave it out instead")


def check_log_config(value: Path) -> None:
    try:
        read_log_config(value)
    except OSError as e:
        raise ValueError(f"cannot read {value}: {e.strerror or e}") from None
    except KeyProblem as e:
        raise ValueError(f"{value}: {e}") from None


def check_load_model(names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
    if names and info.data.get("model_control_mode", "explicit") != "explicit":
        raise ValueError("--load-model requires --model-control-mode explicit")
    return names


def restrictions_of(rules: tuple[SecretStr, ...]) -> Restrictions:
    """Return the parts of the API that require a header. Raises ValueError."""
    return Restrictions(rule.get_secret_value() for rule in rules)


def lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def default_cache_dir() -> Path:
    """Return ``$XDG_CACHE_HOME/popgate``, usually ``~/.cache/popgate``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "popgate"


@dataclass(frozen=True, slots=True)
class Shown:
    """Presentation of a setting's option, if its field does not state all of it.

    `metavar` stands for the value, `default` describes the value if none is set, and
    `names` are the option's other names. If a field has several, the last one counts.
    """

    metavar: str
    default: str = ""
    names: tuple[str, ...] = ()


Bytes = Annotated[int, BeforeValidator(parse_size), Field(ge=0), Shown("SIZE")]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(parse_names)]
Seconds = Annotated[
    float, Field(ge=0, le=LONGEST, allow_inf_nan=False), Shown("SECONDS")
]
Positive = Annotated[Seconds, Field(gt=0)]
Port = Annotated[int, Field(ge=0, le=65535), Shown("PORT")]
Text = Annotated[str, Field(min_length=1, max_length=100)]


class Settings(BaseSettings):
    """Settings of a gateway. Defaults are safe for one machine.

    Sizes are bytes (``64MiB`` is understood), times are seconds. A `profile` (one of
    `app.config.profiles`) changes the defaults.

    This class is the only place that states the settings. The options of `popgate
    serve` and the table of `docs/reference/configuration.md` are made from the fields
    and the strings below them. The settings that most users need come first.
    """

    model_config = SettingsConfigDict(
        env_prefix="POPGATE_", frozen=True, extra="forbid", env_ignore_empty=True
    )

    model_repository: Annotated[Path, Shown("DIR", names=("-m",))] = Path("models")
    """Folder with the models: NAME.popef or .onnx, or NAME/VERSION/*.popef or .onnx."""
    model: Annotated[
        tuple[str, ...],
        NoDecode,
        BeforeValidator(parse_models),
        Shown("[NAME=]PATH|URL"),
    ] = ()
    """Also serve this file, or this folder of one model.

    Without --model-repository, the server serves only these. May be repeated. A URL
    loads a remote model: s3://, gs://, az://, hf://, oci://, mlflow:/, https://.
    """
    host: Annotated[str, Shown("ADDRESS")] = "127.0.0.1"
    """Address to listen on. 0.0.0.0 listens on all addresses of this machine."""
    port: Port = 8000
    """Port; 0 chooses a free port and prints it."""
    devices: Annotated[
        str | None, accepted_by(check_devices), Shown("SPEC", "one free CPU device")
    ] = None
    """Devices to run models on: cpu:2 (two devices), cpu:0-3, cuda:0."""
    threads: Annotated[
        int | None, Field(ge=1, le=1024), Shown("N", "the cores but one for HTTP")
    ] = None
    """Threads for all devices together.

    Set it if other programs also compute on this machine.
    """
    device_wait: Annotated[
        str, accepted_by(parse_device_wait), Shown("no-wait|forever|SECONDS")
    ] = "no-wait"
    """How long to wait for devices that another process holds."""
    device_wait_sleep: Seconds = 15.0
    """Pause between two attempts to get a device."""
    device_timeout: Seconds = 10.0
    """Time for a device process, or a worker, to answer a ping before it is replaced;
    0: no limit."""
    uds: Annotated[Path | None, Shown("PATH")] = None
    """Listen on a Unix socket instead of a port."""
    workers: Annotated[int, Field(ge=1, le=64), Shown("N")] = 1
    """Number of HTTP processes, which share the devices.

    Raise it if one process cannot keep up.
    """
    base_path: Annotated[str, AfterValidator(base_path_of), Shown("/PATH")] = ""
    """Also answer below this path, as in /some/base/v2, for clients and proxies that
    prepend one.
    """
    # The second name is the one that messages tell users.
    max_body_size: Annotated[
        Bytes, Field(gt=0), Shown("SIZE", names=("--http-max-input-size",))
    ] = 256 * 1024 * 1024
    """Largest request body, as in 64MiB.

    JSON bodies are limited to 64 MiB unless this option is set.
    """
    max_strings: Annotated[int, Field(ge=1, le=1 << 31), Shown("N")] = 1 << 20
    """Most strings of a BYTES tensor in a request, or in a JSON answer.

    A string takes far more memory and time than its bytes.
    """
    request_timeout: Positive = 60.0
    """Time limit of a request, which then fails with 504.

    A request may set a shorter limit, or a longer one if its model allows it (timeout,
    max_timeout).
    """
    header_timeout: Seconds = 30.0
    """Time limit for receiving the head of a request, and for a TLS handshake.

    0: no limit for heads, 60 s for handshakes.
    """
    upload_timeout: Seconds = 30.0
    """Fail a request with 408 if its client sends nothing of an incomplete body for
    this long. 0: no limit.
    """
    send_timeout: Seconds = 30.0
    """Close a connection if its client reads nothing of a response for this long. 0: no
    limit.
    """
    transfer_memory: Bytes = 0
    """Memory for the bodies of all requests and responses in transit. At the limit,
    requests of more than 64 KiB get 503. 0: half the memory of the machine or of its
    control group.
    """
    max_connections: Annotated[int, Field(ge=0, le=1 << 20), Shown("N")] = 0
    """Most open connections. At the limit, a new connection closes the oldest one that
    has sent no request, but for the latest 64 of these. If there is none, it may send
    health checks and management calls only; other requests get 503. 0: three quarters
    of the file descriptors that the server may open.
    """
    max_connections_per_address: Annotated[int, Field(ge=0, le=1 << 20), Shown("N")] = 0
    """Most open connections of one client address, in each worker.

    At the limit, a new connection closes the oldest one of that address that has sent
    no request. If all have sent one, its requests get 503. 0: no limit.
    """
    compress_responses: Literal["asked", "always", "never"] = "asked"
    """When to compress inference responses, if Accept-Encoding allows it. asked: unless
    it is the default list that HTTP libraries send.
    """
    allow_origin: Annotated[Names, accepted_by(check_origins), Shown("ORIGIN")] = ()
    """Let web pages of this origin call the server (CORS), as in https://shop.example;
    * allows any origin.

    May be repeated.
    """
    trusted_proxy: Annotated[Names, accepted_by(check_proxies), Shown("ADDRESS")] = ()
    """Trust a proxy at this address, in this network (10.0.0.0/8) or on a Unix socket
    (unix).

    The log then shows the client from X-Forwarded-For or Forwarded. May be repeated.
    """
    api_key: Annotated[SecretStr | None, accepted_by(check_secret), Shown("KEY")] = None
    """API key that management calls require, for example to load and unload models.

    Prefer the environment variable POPGATE_API_KEY.
    """
    management_socket: Annotated[Path | None, Shown("PATH")] = None
    """Also listen on this Unix socket, which only the server's own user can open (mode
    0600).

    Without keys, management is allowed there.
    """
    trust_loopback: bool = False
    """If no keys are set, let clients with a loopback address load and unload models.

    Do not use it behind a proxy on this machine, which gives every client such an
    address.
    """
    keys: Annotated[Path | None, Shown("FILE")] = None
    """A TOML file of keys and what each key allows (popgate key makes one).

    All requests but health checks then require a key. The server reloads the file when
    it changes.
    """
    restricted_api: Annotated[
        tuple[SecretStr, ...],
        NoDecode,
        BeforeValidator(parse_rules),
        accepted_by(restrictions_of),
        Shown("GROUP[,GROUP]:HEADER=VALUE", names=("--http-restricted-api",)),
    ] = ()
    """Groups of the API that require a header, as in
    model-repository,logging:admin-key=secret.

    May be repeated (in the environment: one, or a JSON list).
    """
    tls_cert: Annotated[Path | None, Shown("FILE")] = None
    """Serve HTTPS with this certificate (PEM, with intermediate certificates), on the
    metrics port too.

    The server reloads the file when it changes.
    """
    tls_key: Annotated[Path | None, Shown("FILE", "in the file of --tls-cert")] = None
    """Private key of the certificate, without a password."""
    tls_client_ca: Annotated[Path | None, Shown("FILE")] = None
    """Accept only clients with a certificate of one of these authorities (mutual
    TLS)."""
    shutdown_timeout: Seconds = 30.0
    """Time for requests in flight to finish at shutdown."""
    drain_grace: Seconds = 0.0
    """Time to keep accepting connections at shutdown, for a slow load balancer."""
    load_threads: Annotated[int, Field(ge=1, le=64), Shown("N")] = 4
    """Number of models loaded in parallel; as many ONNX files are compiled
    in parallel.
    """
    load_timeout: Positive = 300.0
    """Time limit for loading a model and warming it up."""
    run_timeout: Seconds = 30.0
    """Time limit for one run of a model, after which its requests fail with 500.

    A longer timeout or max_timeout of the model raises it. 0: no limit.
    """
    compile_timeout: Positive = 600.0
    """Time limit for compiling an ONNX file."""
    compile_memory: Bytes = 0
    """Memory limit for compiling an ONNX file; 0: three quarters of the machine's."""
    cache_dir: Annotated[Path, Shown("DIR", "~/.cache/popgate")] = Field(
        default_factory=default_cache_dir
    )
    """Folder for compiled ONNX files. The default follows XDG_CACHE_HOME."""
    model_cache: Annotated[
        Path | None, Shown("DIR", "the folder models of --cache-dir")
    ] = None
    """Folder for downloaded remote models."""
    model_download_limit: Bytes = 16 * 1024**3
    """Size limit of one remote model; 0: no limit."""
    model_control_mode: ControlModeName = "managed"
    """Which models are loaded. managed: all at the start, then by load and unload
    requests. none: all at the start, and load and unload requests are refused. poll: as
    the folder changes. explicit: the named models (--load-model) at the start, then by
    load and unload requests.
    """
    load_model: Annotated[Names, AfterValidator(check_load_model), Shown("NAME")] = ()
    """Load this model at the start, with --model-control-mode explicit.

    May be repeated, or name several, separated by commas; * loads all.
    """
    repository_poll_secs: Annotated[Seconds, Field(ge=0.1, le=86400)] = 15.0
    """Interval between two scans for changed models, remote ones too, in the control
    mode poll.
    """
    reload: bool = False
    """For development: load changed models immediately.

    If loading fails, the server logs the error and keeps serving the former version.
    """
    lazy: bool = False
    """Load each model at its first request, if you have many models and use few."""
    model_memory: Bytes = 0
    """Memory limit for all loaded models.

    Beyond it, the least recently used models are unloaded. 0: no limit.
    """
    strict_readiness: bool = False
    """Report not ready if any model failed to load."""
    server_name: Annotated[Text, Shown("NAME")] = "popgate"
    """Server name in the answer of /v2."""
    server_version: Annotated[Text | None, Shown("TEXT", "that of PopGate")] = None
    """Server version in the answer of /v2."""
    server_extensions: Annotated[
        str, accepted_by(check_extensions), Shown("NAMES", "all supported ones")
    ] = ""
    """Extensions in the answer of /v2, separated by commas."""
    allow_python: bool = False
    """Run models that are Python code (NAME/VERSION/model.py) with the rights of the
    server.

    Anyone who can write to the model repository can then run any code.
    """
    allow_shared_memory: bool = False
    """Let clients on this machine register POSIX shared memory for tensors."""
    shared_memory_limit: Annotated[Bytes, Field(gt=0)] = 16 * 1024**3
    """Largest total size of all registered regions."""
    shared_memory_lease: Seconds = 3600.0
    """Time after which an unused region is unregistered; 0: never."""
    shared_memory_prefix: Annotated[
        str, Field(max_length=200), Shown("TEXT", "anything")
    ] = ""
    """Prefix that the keys of registered segments must have."""
    trace_file: Annotated[Path | None, Shown("PATH")] = None
    """File to write request traces to, as a JSON array. Tracing requires it."""
    trace_level: Annotated[TraceLevel, BeforeValidator(lower)] = "off"
    """What to trace from the start. tensors: times and data."""
    trace_rate: Annotated[int, Field(ge=1), Shown("N")] = 1000
    """Trace one request in N."""
    trace_count: Annotated[int, Field(ge=-1), Shown("N")] = -1
    """Number of traces to write; -1: no limit."""
    profile: Annotated[str | None, accepted_by(profile_named), Shown("NAME")] = None
    """A set of defaults and models of a plugin, for clients of another server."""
    metrics_port: Annotated[Port | None, Shown("PORT")] = None
    """A second port with /metrics and health checks only, for a network that may not
    run models.

    0 chooses a free port and prints it.
    """
    error_statuses: Annotated[
        str, accepted_by(check_statuses), Shown("http|PROFILE")
    ] = HTTP_STATUSES
    """Statuses of errors: HTTP's, or those of the other server that a profile
    (--profile) is for.
    """
    access_log: Annotated[
        str, accepted_by(parse_ratio), Shown("off|errors|RATIO|all")
    ] = "errors"
    """Which requests to log.

    errors: failed requests. RATIO, as in 0.01: failed requests and this share of the
    others.
    """
    openai_root: bool = False
    """Also answer POST requests of OpenAI clients at /v1, in addition to /openai/v1."""
    tei: Annotated[str, Shown("MODEL")] = ""
    """The text model that answers at /embed, /rerank and the other routes of
    text-embeddings-inference, whose requests name no model.
    """
    invocations: Annotated[str, Shown("MODEL")] = ""
    """The model that answers at /invocations, MLflow's path, whose requests name no
    model.

    The default is the only model.
    """
    no_pages: bool = False
    """Serve no web pages at /, and none of their data: /v1/requests, /v1/history and
    /v1/log."""
    log_level: Annotated[LogLevel, BeforeValidator(lower)] = "info"
    """Log messages of this level and above."""
    log_format: Annotated[LogFormat, BeforeValidator(lower)] = "text"
    """Format of the log; json writes one object per line."""
    log_config: Annotated[Path | None, accepted_by(check_log_config), Shown("FILE")] = (
        None
    )
    """A TOML file with log_level and access_log, which override the options.

    SIGHUP reloads the file.
    """

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources of settings in order of precedence: arguments,
        environment, profile.
        """
        name = init_settings().get("profile") or env_settings().get("profile")
        defaults: dict[str, Any] = {}
        if name:
            with contextlib.suppress(ValueError):  # refused when it is validated
                defaults = dict(profile_named(str(name)).settings)
        source = InitSettingsSource(settings_cls, defaults)
        return init_settings, env_settings, source

    @property
    def limits(self) -> Limits:
        """Return the limits of a request.

        If an operator sets `max_body_size`, it applies to JSON as well, whose default
        limit is lower.
        """
        most, most_json = self.max_body_size, DEFAULT_LIMITS.max_json_bytes
        values = DEFAULT_LIMITS.max_document_values
        if "max_body_size" in self.model_fields_set and most > most_json:
            values = values * most // most_json
            most_json = most
        return replace(
            DEFAULT_LIMITS,
            max_body_bytes=most,
            max_json_bytes=most_json,
            max_document_values=values,
            max_strings=self.max_strings,
        )

    @property
    def restrictions(self) -> Restrictions:
        """Return the parts of the API that require a header."""
        return restrictions_of(self.restricted_api)

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        if self.tls_cert is None and (self.tls_key or self.tls_client_ca):
            msg = "TLS needs a certificate: set --tls-cert (POPGATE_TLS_CERT)"
            raise ValueError(msg)
        if self.trace_level != "off" and self.trace_file is None:
            msg = "tracing needs a file: set --trace-file (POPGATE_TRACE_FILE)"
            raise ValueError(msg)
        return self

    @property
    def device_wait_config(self) -> DeviceWaitConfig:
        """Return how attaching a device retries (Model Runtime:
        ``DeviceWaitConfig``).
        """
        seconds = parse_device_wait(self.device_wait)
        if seconds is None:
            return DeviceWaitConfig(
                DeviceWaitStrategy.WAIT_FOREVER, sleep_time=self.device_wait_sleep
            )
        if seconds == 0:
            return DeviceWaitConfig(sleep_time=self.device_wait_sleep)
        return DeviceWaitConfig.with_timeout(seconds, self.device_wait_sleep)
