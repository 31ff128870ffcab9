"""The exporters of spans that ``OTEL_TRACES_EXPORTER`` names."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from engine import InvalidConfig

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
NEEDS_MORE = (
    "OpenTelemetry's variables enable spans, but its packages are not installed: pip "
    "install 'popgate[otel]'"
)


def spans_wanted(environment: Mapping[str, str]) -> bool:
    """Return whether OpenTelemetry's variables ask for spans."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    names = exporter_names(environment)
    if names == ["otlp"]:
        return any(environment.get(name) for name in _ENDPOINTS)
    return names != ["none"]


def exporter_names(environment: Mapping[str, str]) -> list[str]:
    """Return the names in ``OTEL_TRACES_EXPORTER``, ``otlp`` by default."""
    text = environment.get("OTEL_TRACES_EXPORTER", "").lower()
    return [name.strip() for name in text.split(",") if name.strip()] or ["otlp"]


def exporters(environment: Mapping[str, str]) -> list[Any]:
    """Return the exporters that ``OTEL_TRACES_EXPORTER`` names.

    Raises `engine.InvalidConfig` for an unknown exporter.
    """
    makers = {"otlp": _otlp_exporter, "console": _console_exporter}
    names = exporter_names(environment)
    for name in names:
        if name not in makers:
            expected = "expected otlp, console or none"
            raise InvalidConfig(f"OTEL_TRACES_EXPORTER={name!r}: {expected}")
    return [makers[name](environment) for name in names]


def _console_exporter(environment: Mapping[str, str]) -> Any:
    """Return an exporter that writes each span as one line of JSON to stdout."""
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter

    return ConsoleSpanExporter(formatter=lambda span: span.to_json(indent=None) + "\n")


def _otlp_exporter(environment: Mapping[str, str]) -> Any:
    """Return an exporter that speaks the protocol of ``OTEL_EXPORTER_OTLP_PROTOCOL``.

    Raises `engine.InvalidConfig` if its package is not installed: spans in another
    protocol would go to a port that does not understand them.
    """
    variable = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
    if not environment.get(variable):
        variable = "OTEL_EXPORTER_OTLP_PROTOCOL"
    protocol = environment.get(variable, "").strip().lower() or "http/protobuf"
    if protocol not in ("http/protobuf", "grpc"):
        expected = "expected http/protobuf or grpc"
        raise InvalidConfig(f"{variable}={protocol!r}: {expected}")
    kind = protocol.partition("/")[0]
    try:
        module = import_module(
            f"opentelemetry.exporter.otlp.proto.{kind}.trace_exporter"
        )
    except ImportError as e:
        if kind == "http":
            raise InvalidConfig(NEEDS_MORE) from e
        msg = (
            f"{variable}=grpc needs another package: pip install "
            "opentelemetry-exporter-otlp-proto-grpc (or set it to http/protobuf, and "
            "the endpoint to the collector's port for OTLP over HTTP, usually 4318)"
        )
        raise InvalidConfig(msg) from e
    return module.OTLPSpanExporter()
