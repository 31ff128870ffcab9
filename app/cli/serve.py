"""`popgate serve`: a folder of models, over HTTP."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.errors import EXIT_USAGE, CommandError
from app.cli.started import print_failed, print_listening, print_started

if TYPE_CHECKING:
    from app.settings import Settings

# The order is that of the help: what everybody sets comes first.
_Repository = Annotated[
    Path | None,
    typer.Option(
        "--model-repository", "-m", metavar="DIR",
        help="Folder with the models: NAME.popef, or NAME/VERSION/*.popef or .onnx. "
        "[default: models]",
    ),
]  # fmt: skip
_Host = Annotated[
    str | None,
    typer.Option(help="Address to listen on. 0.0.0.0 is every one of this machine. "
                 "[default: 127.0.0.1]"),
]  # fmt: skip
_Port = Annotated[
    int | None, typer.Option(help="Port; 0 takes a free one. [default: 8000]")
]
_Uds = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="Listen on a Unix socket instead of a port."),
]
_BasePath = Annotated[
    str | None,
    typer.Option(metavar="/PATH", help="Answer below this path as well, as in "
                 "/some/base/v2. [default: none]"),
]  # fmt: skip
_Devices = Annotated[
    str | None,
    typer.Option(metavar="SPEC", help="Devices to run on, all of them: cpu:2 (two), "
                 "cpu:0-3, cuda:0. [default: one free CPU device]"),
]  # fmt: skip
_DeviceWait = Annotated[
    str | None,
    typer.Option(metavar="no-wait|forever|SECONDS", help="What to do while another "
                 "process has the devices. [default: no-wait]"),
]  # fmt: skip
_DeviceWaitSleep = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Pause between two tries. [default: 15]"),
]
_MaxBodySize = Annotated[
    str | None,
    # The second name is the one that Triton's messages, and so ours, tell users.
    typer.Option("--max-body-size", "--http-max-input-size", metavar="SIZE",
                 help="Largest request, as in 64MiB. [default: 256MiB]"),
]  # fmt: skip
_DeviceTimeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="A device process that does not answer for so "
                 "long is killed and started again; 0: never. "
                 "[default: 10]"),
]  # fmt: skip
_RequestTimeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="A request that takes longer fails with 504, "
                 "whatever it asks for. [default: 60]"),
]  # fmt: skip
_CompressResponses = Annotated[
    str | None,
    typer.Option(metavar="asked|always|never", help="When Accept-Encoding compresses "
                 "answers of inference: asked ignores the list of codings that HTTP "
                 "libraries send by themselves. [default: asked]"),
]  # fmt: skip
_ApiKey = Annotated[
    str | None,
    typer.Option(metavar="KEY", help="Needed to load and unload models; without it "
                 "only this machine may. Better set as POPGATE_API_KEY."),
]  # fmt: skip
_UploadTimeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="How long the body of a request may stop "
                 "coming before it is given up; 0: for ever. [default: 30]"),
]  # fmt: skip
_SendTimeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="How long a client may take nothing of its "
                 "answer before its connection is closed; 0: for ever. [default: 30]"),
]  # fmt: skip
_TransferMemory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="What the bodies and answers of all requests "
                 "may take together while they are on their way; 0: half of the "
                 "memory. [default: 0]"),
]  # fmt: skip
_RestrictedApi = Annotated[
    list[str] | None,
    typer.Option("--restricted-api", "--http-restricted-api",
                 metavar="GROUP[,GROUP]:HEADER=VALUE", help="Parts of the API that "
                 "need a header; may be given several times."),
]  # fmt: skip
_ShutdownTimeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="How long requests in flight may take once "
                 "the server is told to end. [default: 30]"),
]  # fmt: skip
_DrainGrace = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="How long new connections are still taken "
                 "then. [default: 0]"),
]  # fmt: skip
_LoadThreads = Annotated[
    int | None,
    typer.Option(metavar="N", help="Models loaded at the same time. [default: 4]"),
]
_LoadTimeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="A model that takes longer to load and warm "
                 "up has failed to. [default: 300]"),
]  # fmt: skip
_RunTimeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="A model of which one run takes longer is "
                 "served no more; more where its options allow requests more; "
                 "0: never. [default: 30]"),
]  # fmt: skip
_CompileTimeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="An ONNX file that takes longer to compile "
                 "has failed to. [default: 600]"),
]  # fmt: skip
_CompileMemory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Memory that compiling an ONNX file may take; "
                 "0: three quarters of the machine's. [default: 0]"),
]  # fmt: skip
_CacheDir = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Where compiled ONNX files are kept. "
                 "[default: ~/.cache/popgate]"),
]  # fmt: skip
_ControlMode = Annotated[
    str | None,
    typer.Option("--model-control-mode", metavar="managed|none|poll|explicit",
                 help="Which models are loaded, and when: all at the start and then "
                 "by request; all and no requests; whatever the folder holds, looked "
                 "at again and again; those named with load-model and by request. "
                 "[default: managed]"),
]  # fmt: skip
_LoadModel = Annotated[
    list[str] | None,
    typer.Option("--load-model", metavar="NAME", help="Load this model at the start, "
                 "with the mode explicit; may be repeated, or name several "
                 "with commas; * is all."),
]  # fmt: skip
_PollSecs = Annotated[
    float | None,
    typer.Option("--repository-poll-secs", metavar="SECONDS", help="How often the mode "
                 "poll looks for changes. [default: 15]"),
]  # fmt: skip
_Lazy = Annotated[
    bool | None,
    typer.Option("--lazy", help="Load a model when the first request to it comes."),
]
_ModelMemory = Annotated[
    str | None,
    typer.Option("--model-memory", metavar="SIZE", help="What all loaded models may "
                 "take together (0: no limit); the least recently used "
                 "make room. [default: 0]"),
]  # fmt: skip
_StrictReadiness = Annotated[
    bool | None,
    typer.Option("--strict-readiness", help="Not ready if any model failed to load."),
]
_ServerName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The name that /v2 gives. [default: popgate]"),
]
_ServerExtensions = Annotated[
    str | None,
    typer.Option(metavar="NAMES", help="The extensions that /v2 lists, separated by "
                 "commas. [default: all that work]"),
]  # fmt: skip
_ServerVersion = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="The version that /v2 gives. [default: ours]"),
]
_AllowSharedMemory = Annotated[
    bool | None,
    typer.Option("--allow-shared-memory", help="Let clients of this machine register "
                 "POSIX shared memory for tensors."),
]  # fmt: skip
_SharedMemoryLimit = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Bytes that may be registered. [default: 16GiB]"),
]
_SharedMemoryLease = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Unregister what no request has used for so "
                 "long; 0: never. [default: 3600]"),
]  # fmt: skip
_SharedMemoryPrefix = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="What keys of segments must begin with. "
                 "[default: anything]"),
]  # fmt: skip
_TraceFile = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="Where traces of requests go, in Triton's JSON "
                 "form; without it nothing can be traced."),
]  # fmt: skip
_TraceLevel = Annotated[
    str | None,
    typer.Option(metavar="off|timestamps|tensors", help="What is traced from the "
                 "start. [default: off]"),
]  # fmt: skip
_TraceRate = Annotated[
    int | None,
    typer.Option(metavar="N", help="One of N requests is traced. [default: 1000]"),
]
_TraceCount = Annotated[
    int | None,
    typer.Option(metavar="N", help="Traces to make; -1: no end. [default: -1]"),
]
_MetricsPort = Annotated[
    int | None,
    typer.Option(metavar="PORT", help="A second port, which has /metrics and health "
                 "only; 0 takes a free one. [default: none]"),
]  # fmt: skip
_ErrorStatuses = Annotated[
    str | None,
    typer.Option(metavar="http|triton", help="Statuses of errors: triton answers 400 "
                 "to what is too large and 503 where a queue is full. "
                 "[default: http]"),
]  # fmt: skip
_Profile = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Defaults and models that belong together. "
                 "triton: what Triton's example clients expect to find."),
]  # fmt: skip
_LogLevel = Annotated[
    str | None,
    typer.Option(metavar="LEVEL", help="debug, info, warning, error or critical. "
                 "[default: info]"),
]  # fmt: skip
_LogFormat = Annotated[
    str | None, typer.Option(metavar="text|json", help="[default: text]")
]


def serve(
    model_repository: _Repository = None,
    host: _Host = None,
    port: _Port = None,
    devices: _Devices = None,
    device_wait: _DeviceWait = None,
    device_wait_sleep: _DeviceWaitSleep = None,
    device_timeout: _DeviceTimeout = None,
    uds: _Uds = None,
    base_path: _BasePath = None,
    max_body_size: _MaxBodySize = None,
    request_timeout: _RequestTimeout = None,
    upload_timeout: _UploadTimeout = None,
    send_timeout: _SendTimeout = None,
    transfer_memory: _TransferMemory = None,
    compress_responses: _CompressResponses = None,
    api_key: _ApiKey = None,
    restricted_api: _RestrictedApi = None,
    shutdown_timeout: _ShutdownTimeout = None,
    drain_grace: _DrainGrace = None,
    load_threads: _LoadThreads = None,
    load_timeout: _LoadTimeout = None,
    run_timeout: _RunTimeout = None,
    compile_timeout: _CompileTimeout = None,
    compile_memory: _CompileMemory = None,
    cache_dir: _CacheDir = None,
    model_control_mode: _ControlMode = None,
    load_model: _LoadModel = None,
    repository_poll_secs: _PollSecs = None,
    lazy: _Lazy = None,
    model_memory: _ModelMemory = None,
    strict_readiness: _StrictReadiness = None,
    server_name: _ServerName = None,
    server_version: _ServerVersion = None,
    server_extensions: _ServerExtensions = None,
    allow_shared_memory: _AllowSharedMemory = None,
    shared_memory_limit: _SharedMemoryLimit = None,
    shared_memory_lease: _SharedMemoryLease = None,
    shared_memory_prefix: _SharedMemoryPrefix = None,
    trace_file: _TraceFile = None,
    trace_level: _TraceLevel = None,
    trace_rate: _TraceRate = None,
    trace_count: _TraceCount = None,
    profile: _Profile = None,
    metrics_port: _MetricsPort = None,
    error_statuses: _ErrorStatuses = None,
    log_level: _LogLevel = None,
    log_format: _LogFormat = None,
) -> None:
    """Serve a folder of models over HTTP.

    Every option can also be set in the environment: --max-body-size is
    POPGATE_MAX_BODY_SIZE, and so on. Ctrl-C ends it in an orderly way: requests in
    flight are answered. A second Ctrl-C ends it at once.
    """
    given = {k: v for k, v in locals().items() if v is not None}
    with _ended_by_interrupts():
        code = _serve(given)
    raise typer.Exit(code)


@contextmanager
def _ended_by_interrupts() -> Iterator[None]:
    """Control-C ends the process until the server takes it, as SIGTERM does.

    Python's exception is lost where it comes up in a callback of an import.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # ignored, for one: so be it
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _serve(given: dict[str, Any]) -> int:
    settings = _settings(given)
    settings = _with_profile_models(settings)
    if not settings.model_repository.is_dir():
        msg = (
            f"there is no folder {settings.model_repository}; make it and put models "
            f"into it, or name another with --model-repository"
        )
        raise CommandError(msg, EXIT_USAGE)
    from app.http.server import ListenError
    from app.run import run_gateway
    from engine import InvalidConfig

    try:
        return run_gateway(
            settings,
            on_listening=lambda url, metrics: print_listening(url, metrics, settings),
            on_started=print_started,
            on_failed=print_failed,
        )
    except (ListenError, InvalidConfig) as e:
        raise CommandError(str(e), EXIT_USAGE) from None


def _settings(given: dict[str, Any]) -> Settings:
    from pydantic import ValidationError

    from app.settings import Settings

    try:
        return Settings(**given)
    except ValidationError as e:
        lines = (f"{_option(p['loc'], given)}: {p['msg']}" for p in e.errors())
        text = "; ".join(lines).replace("Value error, ", "")
        raise CommandError(text, EXIT_USAGE) from None


def _with_profile_models(settings: Settings) -> Settings:
    """The profile's own models are served where no other folder is named."""
    from app.config.profiles import PROFILES

    if settings.profile is None or "model_repository" in settings.model_fields_set:
        return settings
    try:
        folder = PROFILES[settings.profile].repository(settings.cache_dir)
    except OSError as e:
        msg = f"the models of profile {settings.profile} cannot be written: {e}"
        raise CommandError(msg, EXIT_USAGE) from None
    return settings.model_copy(update={"model_repository": folder})


def _option(location: tuple[int | str, ...], given: dict[str, Any]) -> str:
    """The option, or the variable, that a value came from."""
    name = str(location[0]) if location else "settings"
    if name in given:
        return "--" + name.replace("_", "-")
    return "POPGATE_" + name.upper()
