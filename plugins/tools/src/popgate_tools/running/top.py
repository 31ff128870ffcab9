"""`popgate top`: the activity of a running gateway, in a terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from popgate_tools.asking.option_groups import grouped
from popgate_tools.asking.server import Server

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from popgate_client import Client

_MODELS, _REQUESTS = 20, 10
#: Lines of the screen beside the rows of its tables: titles, captions, empty lines.
_OTHER_LINES = 16
_ANY_HEIGHT = 10_000
_BAR = 40  # cells
_PHASES = {
    "receive": "white",
    "decode": "cyan",
    "queue": "yellow",
    "compute": "blue",
    "wake": "bright_black",
    "encode": "green",
}


@grouped
def top(
    interval: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0.1, max=86_400, help="Time between updates."
        ),
    ] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print the figures once, then exit.")
    ] = False,
    *,
    server: Server,
) -> None:
    """Watch a running gateway: models, devices, the last requests.

    It shows the figures of the gateway's pages (http://127.0.0.1:8000/), until you
    press Ctrl+C.
    """
    from rich.console import Console
    from rich.live import Live

    console = Console()
    try:
        with server.asking() as client:
            screen = Screen(client, server.shown_url)
            screen.refresh()
            time.sleep(interval)
            if once or not console.is_terminal:
                console.print(screen.refresh())
                return
            first = screen.refresh(console.height)
            with Live(first, console=console, screen=True) as live:
                while True:
                    time.sleep(interval)
                    live.update(screen.refresh(console.height), refresh=True)
    except KeyboardInterrupt:
        return


class Screen:
    """Reads the counters of a gateway repeatedly; their differences are its rates."""

    def __init__(self, client: Client, url: str) -> None:
        self._client = client
        self._url = url
        self._at = 0.0
        self._before: dict[tuple[str, str], dict[str, float]] = {}

    def refresh(self, height: int = _ANY_HEIGHT) -> RenderableType:
        """Return the content of a screen of `height` lines. Raises `ClientError`."""
        from rich.console import Group

        models = self._get("/v1/models")["models"]
        devices = self._get("/v1/devices")["devices"]
        stats = self._get("/v2/models/stats")["model_stats"]
        requests = self._get(f"/v1/requests?limit={_REQUESTS}", optional=True)
        now = time.monotonic()
        counted = {(s["name"], s["version"]): _figures(s) for s in stats}
        since = {
            key: {name: figures[name] - before[name] for name in figures}
            for key, figures in counted.items()
            if (before := self._before.get(key)) is not None
        }
        seconds = now - self._at
        self._at, self._before = now, counted
        # Each table gets a share of the lines, and the requests also what is left.
        left = max(height - _OTHER_LINES, 4)
        of_devices = min(len(devices), left // 4)
        of_models = min(len(models), _MODELS, (left - of_devices) * 2 // 3)
        of_requests = min(_REQUESTS, left - of_devices - of_models)
        shown: list[Table | Text] = [
            _head(self._url, since, seconds, devices),
            _models(models, since, seconds, of_models),
            _devices(devices, of_devices),
        ]
        if requests is not None:
            shown.append(_requests(requests, of_requests))
        return Group(*shown)

    def _get(self, path: str, *, optional: bool = False) -> Any:
        from popgate_client import NotFound

        try:
            return self._client.ask("GET", path)
        except NotFound:
            if optional:
                return None  # --no-pages
            raise


def _figures(stats: Any) -> dict[str, float]:
    """Return the counters of a version from which rates are computed."""
    inference = stats["inference_stats"]
    return {
        "count": inference["success"]["count"],
        "failed": inference["fail"]["count"],
        "ns": inference["success"]["ns"],
        "queue": inference["queue"]["ns"],
        "compute": inference["compute_infer"]["ns"],
        "rows": stats["inference_count"],
        "runs": stats["execution_count"],
    }


def _head(
    url: str,
    since: dict[tuple[str, str], dict[str, float]],
    seconds: float,
    devices: list[Any],
) -> Text:
    from rich.text import Text

    def total(name: str) -> float:
        return sum(figures[name] for figures in since.values())

    text = Text.assemble(("PopGate ", "bold"), url.rstrip("/"), "   ")
    text.append(f"{total('count') / seconds:.1f}", "bold")
    text.append(" requests a second")
    if total("failed"):
        text.append(f", {total('failed') / seconds:.1f} failed", "red")
    text.append(f"   {_milliseconds(total('ns'), total('count'))}")
    flying = sum(device["in_flight"] for device in devices)
    text.append(f"   {flying} in flight")
    return text


def _models(
    models: list[Any],
    since: dict[tuple[str, str], dict[str, float]],
    seconds: float,
    most: int,
) -> Table:
    from rich.text import Text

    table = _table("model", "state", "version", "replicas", "requests/s", "latency",
                   "queued", "computed", "batch")  # fmt: skip
    nothing = dict.fromkeys(("count", "ns", "queue", "compute", "rows", "runs"), 0.0)

    def rate(model: Any) -> dict[str, float]:
        return since.get((model["name"], model["version"] or ""), nothing)

    # The busiest first.
    for model in sorted(models, key=lambda m: -rate(m)["count"])[:most]:
        figures = rate(model)
        count = figures["count"]
        state = model["state"].lower()
        table.add_row(
            Text(model["name"]),
            Text(state, "green" if model["ready"] else "red"),
            model["version"] or "-",
            str(model["instances"] or "-"),
            f"{count / seconds:.1f}",
            _milliseconds(figures["ns"], count),
            _milliseconds(figures["queue"], count),
            _milliseconds(figures["compute"], count),
            f"{figures['rows'] / figures['runs']:.1f}" if figures["runs"] else "-",
        )
    table.caption = _rest(len(models) - most)
    return table


def _devices(devices: list[Any], most: int) -> Table:
    from rich.text import Text

    table = _table("device", "state", "models", "in flight", "threads", "restarts")
    table.caption = _rest(len(devices) - most)
    for device in devices[:most]:
        state = device["state"]
        table.add_row(
            Text(device["id"]),
            Text(state, "green" if state == "ready" else "red"),
            *(str(device[n]) for n in ("models", "in_flight", "threads", "restarts")),
        )
    return table


def _rest(count: int) -> str | None:
    return f"and {count} more" if count > 0 else None


def _requests(requests: Any, most: int) -> Table:
    from rich.text import Text

    table = _table("ended", "model", "request", "took", "batch")
    table.add_column(Text.assemble(*_legend()))
    newest = sorted(requests["answered"] + requests["failed"], key=lambda r: -r["at"])
    for one in newest[:most]:
        failed = one["status"] >= 400
        why = f"{one['status']} {one['error']}"
        shown = Text(why, "red", no_wrap=True, overflow="ellipsis")
        table.add_row(
            time.strftime("%H:%M:%S", time.localtime(one["at"])),
            Text(one["model"] or "-"),
            Text(one["id"][:24]),
            f"{one['total_ms']:.2f} ms",
            "-" if failed else f"{one['rows']} of {one['batch_rows']}",
            shown if failed else _bar(one["phases"]),
        )
    return table


def _legend() -> list[tuple[str, str]]:
    return [(f"{name} ", color) for name, color in _PHASES.items()]


def _bar(phases: dict[str, float]) -> Text:
    """Return the phases of a request, each as wide as its share."""
    from rich.text import Text

    text = Text()
    total = sum(phases.values()) or 1.0
    done, cells = 0.0, 0
    for name, color in _PHASES.items():
        done += phases.get(name, 0.0)
        upto = round(_BAR * done / total)
        text.append("━" * (upto - cells), color)
        cells = upto
    return text


def _table(*titles: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    numbers = ("requests/s", "latency", "queued", "computed", "batch", "took")
    for title in titles:
        table.add_column(title, justify="right" if title in numbers else "left")
    return table


def _milliseconds(ns: float, count: float) -> str:
    return f"{ns / count / 1e6:.2f} ms" if count else "-"
