"""Messages of `popgate serve` while it starts, for a terminal."""

from __future__ import annotations

import logging
import os
import sys
import textwrap
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import typer

from app.sizes import counted

if TYPE_CHECKING:
    from app.gateway import Gateway
    from app.repository.places import ModelPlaces

logger = logging.getLogger("app.start")

MAX_MODELS_LISTED = 20
MAX_REASON = 60  # characters of the reason why a model is not ready
#: The library that the compiled modules share (docs/how-to/tune.md).
COMPILED = "popgate__mypyc"


def print_listening(
    url: str, metrics: str | None, places: ModelPlaces, log_format: str = "text"
) -> None:
    """Print that HTTP is up, and its address."""
    from app.about import VERSION

    tell = partial(say, log_format=log_format)
    tell(f"PopGate {VERSION} listens on {url}, loading models from {places}")
    if metrics is not None:
        tell(f"  metrics  {metrics}/metrics")


def print_started(url: str, gateway: Gateway) -> None:
    """Print the served models and the devices."""
    from app.api.describe import model_summary

    tell = partial(say, log_format=gateway.settings.log_format)
    url += gateway.settings.base_path.rstrip("/")
    devices = gateway.devices.summaries()
    for d in devices:
        tell(f"  device   {d.id}, process {d.pid}, {counted(d.threads, 'thread')}")
    plan = gateway.devices.plan
    tell(f"  threads  {plan}")
    workers = gateway.others.states()
    if workers:
        pids = ", ".join(str(worker.pid) for worker in workers)
        tell(f"  workers  {len(workers)}, processes {pids}")
    tell(f"  hot path {'compiled' if COMPILED in sys.modules else 'plain Python'}")
    if plan.spin_us:
        tell(f"  idle     devices poll for {plan.spin_us} µs before they sleep")
    models = [model_summary(record) for record in gateway.records.all()]
    ready = sum(m.state == "READY" for m in models)
    failed = f", {len(models) - ready} not" if ready < len(models) else ""
    seconds = gateway.load_seconds
    tell(f"  models   {ready} ready{failed}, after {seconds:.1f} s")
    # Failed models first: the others are as expected.
    models.sort(key=lambda m: m.state == "READY")
    width = max((len(m.name) for m in models[:MAX_MODELS_LISTED]), default=0)
    for m in models[:MAX_MODELS_LISTED]:
        # The log contains the whole reason.
        why = textwrap.shorten(m.reason, MAX_REASON, placeholder=" …")
        place = f"{url}{m.url}" if m.state == "READY" else why
        tell(f"    {m.name:<{width}}  {m.state.lower():<11}  {place}")
    if len(models) > MAX_MODELS_LISTED:
        rest = len(models) - MAX_MODELS_LISTED
        tell(f"    and {rest} more: GET {url}/v1/models")
    if not models:
        tell(
            "    none; put a .popef or .onnx file into the folder, and load it "
            "(popgate load NAME)"
        )
    tell(f"  open     {what_is_open(gateway)}")
    tell(f"  manage   {how_to_manage(url, gateway)}")
    if not gateway.table.routes.is_reserved("/docs"):
        return  # no plugin has them
    if not gateway.settings.no_pages:
        tell(f"  pages    {url}/")
    tell(f"  docs     {url}/docs")


def what_is_open(gateway: Gateway) -> str:
    """Return which groups of requests need no key."""
    from app.http.access import Access

    settings, keys = gateway.settings, gateway.keys.table.keys
    groups = Access(settings.restrictions, gateway.keys).open_groups
    said = f"{', '.join(('health', *groups))} without a key"
    if settings.keys is not None:
        said += f", the rest to {counted(len(keys), 'key')}"
    if settings.tls_client_ca is not None:
        said += f"; for clients with a certificate of {settings.tls_client_ca} only"
    return said


def how_to_manage(url: str, gateway: Gateway) -> str:
    """Return which clients may load and unload models, and how."""
    load = "/v1/models/NAME/load"
    settings = gateway.settings
    keys = gateway.keys.table.keys
    if settings.keys is not None and not any(k.allows("manage") for k in keys):
        return 'closed: no key has the group "manage"'
    if settings.api_key is not None or settings.keys is not None:
        return f"with a key: curl -X POST -H 'X-API-Key: KEY' {url}{load}"
    if path := settings.management_socket:
        return f"curl --unix-socket {path} -X POST http://localhost{load}"
    if settings.trust_loopback:
        return f"from this machine: curl -X POST {url}{load}"
    return "closed; to open it, use --management-socket PATH, --trust-loopback or a key"


def print_failed(error: Exception, log_format: str = "text") -> None:
    """Print why the gateway could not start."""
    from engine import DeviceWaitTimeout, NoDeviceAvailable

    why = str(error) or type(error).__name__
    if isinstance(error, NoDeviceAvailable | DeviceWaitTimeout):
        why = (
            f"{error}; `popgate devices` shows which processes hold the devices, "
            "--device-wait waits for a free one, --devices selects others"
        )
    elif isinstance(error, OSError):
        why = f"the model repository cannot be read: {error}"
    if log_format == "json":
        logger.error("%s", why)
    else:
        typer.echo(f"popgate: error: {why}", err=True)


def print_warnings(lines: Iterable[str], log_format: str) -> None:
    """Print warnings from before the log is set up."""
    from app.observe.log import JsonFormatter

    for line in lines:
        text = f"popgate: warning: {line}"
        if log_format == "json":
            record = logger.makeRecord(
                logger.name, logging.WARNING, "", 0, line, (), None
            )
            text = JsonFormatter().format(record)
        typer.echo(text, err=True)


def say(line: str, log_format: str = "text") -> None:
    """Write to standard output, or to the log if it is JSON, because a JSON log may
    contain nothing else. If writing fails, the server continues.
    """
    if log_format == "json":
        logger.info("%s", " ".join(line.split()))
        return
    try:
        print(line, flush=True)
    except OSError:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
