"""Services of the server for a model: other models, metrics, its log."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from popgate_python_interface import CalledModels, MetricSeries, OwnMetrics
from triton_python_backend_utils.responses import TritonModelException

#: Result of `MetricFamily.Metric`, with `increment`, `set`, `observe` and `value`.
Metric = MetricSeries

_log = logging.getLogger("model")


class _Host:
    """Services that the adapter sets for its process."""

    models: CalledModels | None = None
    metrics: OwnMetrics | None = None
    folder: Path = Path()


HOST = _Host()


class Logger:
    """Writes to the server's log, with the model's name."""

    INFO, WARNING, ERROR, VERBOSE = range(4)
    _LEVELS = (logging.INFO, logging.WARNING, logging.ERROR, logging.DEBUG)

    @staticmethod
    def log(message: str, level: int = INFO) -> None:
        _log.log(Logger._LEVELS[level], "%s", message)

    @staticmethod
    def log_info(message: str) -> None:
        _log.info("%s", message)

    @staticmethod
    def log_warn(message: str) -> None:
        _log.warning("%s", message)

    @staticmethod
    def log_error(message: str) -> None:
        _log.error("%s", message)

    @staticmethod
    def log_verbose(message: str) -> None:
        _log.debug("%s", message)


class MetricFamily:
    """Metrics of one name, on the server's ``/metrics``. They can be made in
    `initialize` or later. Raises ValueError for invalid names and labels.
    """

    COUNTER, GAUGE, HISTOGRAM = range(3)
    _KINDS = ("counter", "gauge", "histogram")

    def __init__(self, name: str, description: str, kind: int) -> None:
        if HOST.metrics is None:
            raise TritonModelException("metrics are not available before initialize")
        if kind not in range(3):
            raise ValueError(
                f"metric {name}: unknown kind {kind!r}; expected COUNTER, GAUGE or "
                "HISTOGRAM"
            )
        self._family = HOST.metrics.family(name, description, self._KINDS[kind])

    def Metric(  # noqa: N802
        self,
        labels: Mapping[str, str] | None = None,
        buckets: Sequence[float] | None = None,
    ) -> Metric:
        """Return the metric with these labels.

        A histogram needs the upper bounds of buckets.
        """
        return self._family.series(labels, buckets or ())


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Return whether a model of the server accepts requests. Raises
    TritonModelException if this model may not call it.
    """
    if HOST.models is None:
        raise TritonModelException("models cannot be called before initialize")
    try:
        return HOST.models.is_ready("/".join(filter(None, (model_name, model_version))))
    except KeyError as error:
        raise TritonModelException(str(error)) from None


def load_model(model_name: str, files: Mapping[str, str] | None = None) -> NoReturn:
    """Raise TritonModelException: models may not load models."""
    _refuse("load", model_name)


def unload_model(model_name: str, unload_dependents: bool = False) -> NoReturn:
    """Raise TritonModelException: models may not unload models."""
    _refuse("unload", model_name)


def _refuse(what: str, name: str) -> NoReturn:
    raise TritonModelException(
        f"a model cannot {what} other models; run `popgate {what} {name}`, or "
        f"POST /v2/repository/models/{name}/{what}. Models named in `models` "
        "of its config.toml are loaded before it"
    )


def get_model_dir() -> str:
    """Return the folder of the version."""
    return str(HOST.folder)
