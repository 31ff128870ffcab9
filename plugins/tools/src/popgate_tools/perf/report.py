"""Report of the measurements: a table, and one HTML file with plots."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from popgate_tools.perf.measure import PHASES, Measurement

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 280, 60, 36
_COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd")
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto;
  padding: 0 1rem; color: #222; background: #fff }
table { border-collapse: collapse } td, th { padding: .2rem .7rem; text-align: right }
tr { border-bottom: 1px solid #8884 } svg { max-width: 100%; height: auto }
svg text { font-size: 11px; fill: currentColor }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #181818 } }
"""


def head() -> str:
    """Return the names of the columns of `row`."""
    names = [f"{name + ' ms':>9}" for name in ("p50", "p90", "p99", "p99.9")]
    return f"{'load':<22}{'requests/s':>11}{''.join(names)}{'server ms':>10}"


def row(one: Measurement) -> str:
    """Return one step as a line; milliseconds."""
    values = [one.quantiles[name] for name in ("p50", "p90", "p99", "p99.9")]
    server = one.server.get("request")
    said = f"{server:10.3f}" if server is not None else f"{'-':>10}"
    notes = [] if one.stable else ["not stable"]
    notes += [f"{one.failed} failed"] if one.failed else []
    if one.load.rate:
        notes += [f"sent {one.sent_rate:.0f}/s"]
        notes += [f"{one.late} waited for a connection"] if one.late else []
    shown = "".join(f"{value:9.3f}" for value in values)
    return f"{one.load!s:<22}{one.rate:11.1f}{shown}{said}  {', '.join(notes)}".rstrip()


def page(title: str, about: Mapping[str, Any], steps: Sequence[Measurement]) -> str:
    """Return the report, which loads nothing from elsewhere."""
    marks = [str(step.load) for step in steps]
    plots = [
        ("Requests a second", marks, {"answered": [step.rate for step in steps]}),
        (
            "Latency, ms",
            marks,
            {
                name: [step.quantiles[name] for step in steps]
                for name in ("p50", "p90", "p99", "p99.9")
            },
        ),
    ]
    if all(step.server for step in steps):
        phases = {name: [step.server[name] for step in steps] for name in PHASES}
        plots.append(("In the server, ms a request", marks, phases))
    for step in steps:
        names = list(step.quantiles)
        values = {"ms": list(step.quantiles.values())}
        plots.append((f"Latency at {step.load}, ms", names, values))
    rows = "".join(
        "<tr>"
        + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in _cells(step))
        + "</tr>"
        for step in steps
    )
    facts = "".join(
        f"<li>{html.escape(name)}: {html.escape(str(value))}</li>"
        for name, value in about.items()
    )
    titles = "".join(f"<th>{name}</th>" for name in _TITLES)
    drawn = "".join(
        f"<h2>{html.escape(name)}</h2>{_plot(labels, series)}"
        for name, labels, series in plots
    )
    data = json.dumps([step.as_dict() for step in steps]).replace("<", "\\u003c")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style>"
        f"<h1>{html.escape(title)}</h1><ul>{facts}</ul>"
        f"<table><tr>{titles}</tr>{rows}</table>{drawn}"
        f'<script type="application/json" id="data">{data}</script></html>\n'
    )


_TITLES = (
    "load", "requests/s", "p50 ms", "p90 ms", "p95 ms", "p99 ms", "p99.9 ms",
    "longest ms", "failed", "stable",
)  # fmt: skip


def _cells(step: Measurement) -> list[str]:
    shown = [f"{value:.3f}" for value in step.quantiles.values()]
    return [
        str(step.load), f"{step.rate:.1f}", *shown, f"{step.longest:.3f}",
        str(step.failed), "yes" if step.stable else "no",
    ]  # fmt: skip


def round_ticks(highest: float) -> list[float]:
    """Return round values from 0 to `highest` or just above it, four or more."""
    power = 10.0 ** math.floor(math.log10(highest / 4))
    step = max(step * power for step in (1, 2, 5) if 4 * step * power <= highest)
    count = math.ceil(highest / step - 1e-9)
    return [float(f"{number * step:.12g}") for number in range(count + 1)]


def _plot(labels: Sequence[str], series: Mapping[str, Sequence[float]]) -> str:
    """Return lines over evenly spaced marks, as SVG."""
    highest = max((value for line in series.values() for value in line), default=0) or 1
    ticks = round_ticks(highest)
    top = ticks[-1]
    wide, high = _WIDTH - _LEFT - 130, _HEIGHT - _BOTTOM - 12

    def x(number: int) -> float:
        return _LEFT + (wide * number / (len(labels) - 1) if len(labels) > 1 else 0)

    def y(value: float) -> float:
        return 12 + high * (1 - value / top)

    parts = []
    for tick in ticks:
        at = y(tick)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_LEFT + wide}" y1="{at:.1f}" y2="{at:.1f}" '
            f'stroke="currentColor" opacity=".15"/><text x="{_LEFT - 6}" '
            f'y="{at + 4:.1f}" text-anchor="end">{tick:.4g}</text>'
        )
    for number, label in enumerate(labels):
        parts.append(
            f'<text x="{x(number):.1f}" y="{_HEIGHT - 12}" text-anchor="middle">'
            f"{html.escape(label)}</text>"
        )
    for number, (name, line) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        points = " ".join(f"{x(i):.1f},{y(v):.1f}" for i, v in enumerate(line))
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" '
            f'stroke-width="2"/>'
        )
        parts += [
            f'<circle cx="{x(i):.1f}" cy="{y(v):.1f}" r="3" fill="{colour}">'
            f"<title>{html.escape(name)} {v:.4g}</title></circle>"
            for i, v in enumerate(line)
        ]
        parts.append(
            f'<text x="{_LEFT + wide + 8}" y="{24 + 16 * number}" '
            f'style="fill:{colour}">{html.escape(name)}</text>'
        )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img">'
        f"{''.join(parts)}</svg>"
    )
