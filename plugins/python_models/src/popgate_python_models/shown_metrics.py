"""The own metrics of Python models, over all their processes.

A process reports the values of its metrics (`popgate_python_interface.OwnMetrics`).
Counters and histograms are the sum over all processes, and remain when these end. For a
gauge the last reported value counts, and it ends with its last process.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from app.observe.exposition import family_text, format_labels
from popgate_python_messages.call_messages import MetricTold

logger = logging.getLogger("app.observe.own_metrics")

#: The most series of a model, including those of processes that have ended.
MAX_SERIES = 1000

Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Series:
    """One metric: the sums of ended processes, and the reports of running ones."""

    model: str
    bounds: tuple[float, ...]
    kept: tuple[float, ...]
    told: dict[object, tuple[float, ...]] = field(default_factory=dict)

    def total(self) -> tuple[float, ...]:
        return tuple(map(sum, zip(self.kept, *self.told.values(), strict=True)))


@dataclass(slots=True)
class _Family:
    kind: str
    text: str
    series: dict[Labels, _Series] = field(default_factory=dict)

    @property
    def is_live(self) -> bool:
        return any(series.told for series in self.series.values())


class ShownMetrics:
    """Shown metrics of models. For one thread."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}
        self._of: dict[object, set[tuple[str, Labels]]] = {}
        self._counts: dict[str, int] = {}
        self._refused: set[tuple[str, str]] = set()

    def record(self, process: object, model: str, told: Iterable[MetricTold]) -> None:
        """Record the report of a model's process.

        Metrics that clash or exceed the limits are not shown, and the log says so once.
        """
        for one in told:
            why = self._record(process, model, one)
            if why and (model, one.name) not in self._refused:
                self._refused.add((model, one.name))
                logger.warning(
                    "metric %s of model %s is not shown: %s", one.name, model, why
                )

    def _record(self, process: object, model: str, told: MetricTold) -> str:
        """Record one metric; return why it is refused, or an empty string."""
        family = self._families.get(told.name)
        if family is not None and family.kind != told.kind and not family.is_live:
            for old in family.series.values():
                self._counts[old.model] -= 1
            family = None
        family = family or _Family(told.kind, told.text)
        if family.kind != told.kind:
            return f"another model has a {family.kind} of that name"
        mine = _samples(told.name, told.kind)
        for name, other in self._families.items():
            if name != told.name and mine & _samples(name, other.kind):
                return f"there is already a {other.kind} {name}"
        series = family.series.get(told.labels)
        if series is not None and series.bounds != told.bounds:
            if series.told:
                return "another process has the metric with other buckets"
            series.bounds, series.kept = told.bounds, (0.0,) * len(told.values)
        if series is None:
            if self._counts.get(model, 0) >= MAX_SERIES:
                return f"a model may have at most {MAX_SERIES} combinations of labels"
            self._counts[model] = self._counts.get(model, 0) + 1
            zeros = (0.0,) * len(told.values)
            series = family.series[told.labels] = _Series(model, told.bounds, zeros)
            self._families[told.name] = family
        if told.kind == "gauge":
            series.kept, series.told[process] = told.values, (0.0,)
        else:
            series.told[process] = told.values
        self._of.setdefault(process, set()).add((told.name, told.labels))
        return ""

    def gone(self, process: object) -> None:
        """Remove the gauges of a process that has ended."""
        for name, labels in self._of.pop(process, ()):
            family = self._families[name]
            series = family.series[labels]
            values = series.told.pop(process)
            if family.kind != "gauge":
                series.kept = tuple(map(sum, zip(series.kept, values, strict=True)))
            elif not series.told:
                del family.series[labels]
                self._counts[series.model] -= 1
                if not family.series:
                    del self._families[name]

    def render(self, *, openmetrics: bool = False) -> Iterator[str]:
        """Yield the text of the metrics, one family at a time."""
        for name, family in sorted(self._families.items()):
            text = family.text.replace("\\", r"\\").replace("\n", r"\n")
            if openmetrics:
                text = text.replace('"', r"\"")
            lines: list[str] = []
            for labels, series in family.series.items():
                lines += _lines(name, labels, series)
            yield family_text(name, family.kind, text, lines, openmetrics)

    def __repr__(self) -> str:
        return f"<ShownMetrics {len(self._families)} families>"


def _samples(name: str, kind: str) -> set[str]:
    """Return the names that a family takes, in either form of the text."""
    parts = ("_bucket", "_sum", "_count") if kind == "histogram" else ()
    return {name, name.removesuffix("_total"), *(name + part for part in parts)}


def _lines(name: str, labels: Labels, series: _Series) -> Iterator[str]:
    total = series.total()
    shown = format_labels(dict(labels))
    if not series.bounds:
        yield f"{name}{shown} {_number(total[0])}"
        return
    count = 0.0
    for bound, part in zip((*series.bounds, math.inf), total, strict=False):
        count += part
        at = format_labels({**dict(labels), "le": _number(bound)})
        yield f"{name}_bucket{at} {int(count)}"
    yield f"{name}_sum{shown} {_number(total[-1])}"
    yield f"{name}_count{shown} {int(count)}"


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)
