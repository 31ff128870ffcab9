"""Compare the gateway with the reference server in one run, interleaved: R/G/R/G…

    python -m bench.compare                       # every cell, 5 rounds of 2 s
    python -m bench.compare --seconds 1 --rounds 2 --scenarios S-json,M-json
    python -m bench.compare --out bench/results/NAME.json

Starts `popgate serve` as a user would (no option but the folder and the port) and
`bench.servers.reference`, checks some answers of each in each cell against ONNX Runtime
in process, drives them in turns with wrk (or our own client), and prints requests per
second, latencies, CPU per request and the median ratio gateway/reference.

Each cell is measured in two modes, also in turns. `varied`, the normal mode, sends 256
requests that differ in their numbers, traceparent, id and Content-Length. `same` sends
the same bytes again and again. The required ratios are for the normal mode. Exit code 1
if an answer was wrong or not a 200, or a required ratio was missed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bench.cases.models import write_models
from bench.cases.payloads import HEADER_LENGTH, read_answer
from bench.cases.scenarios import SCENARIOS, TOLERANCE, VARIED, Mode, Request, Scenario
from bench.drivers.load import Load, Prepared, drive, has_wrk, prepared
from bench.servers.machine import describe
from bench.servers.reference import open_session
from bench.servers.server import HOST, Server, compile_models, free_port, gateway

CONNECTIONS = (1, 16, 64)
#: Numbers of the varied requests whose answers are checked.
CHECKED = (0, 1, 100, VARIED - 1)
#: CPU share above which the client, not the server, is the bottleneck.
BUSY_CLIENT = 0.9


@dataclass(frozen=True, slots=True)
class Run:
    """One server in one round of one cell. `cpu` is seconds a request."""

    load: Load
    cpu: float


@dataclass(frozen=True, slots=True)
class Cell:
    """Result of both servers in one scenario at one number of connections,
    all rounds.
    """

    scenario: str
    connections: int
    mode: Mode
    required: float | None
    reference: tuple[Run, ...]
    gateway: tuple[Run, ...]

    @property
    def ratio(self) -> float:
        """Ratio of the requests per second of gateway and reference in the same round:
        the median of all rounds, because the speed of a machine changes between rounds.
        """
        return statistics.median(
            mine.load.rate / base.load.rate if base.load.rate else 0.0
            for mine, base in zip(self.gateway, self.reference, strict=True)
        )

    @property
    def runs(self) -> tuple[Run, ...]:
        return (*self.reference, *self.gateway)

    @property
    def failures(self) -> int:
        return sum(run.load.not_ok + run.load.broken for run in self.runs)

    @property
    def verdict(self) -> str:
        if self.failures:
            return f"FAIL: {self.failures} requests not answered with 200"
        if self.required is None:
            return ""
        return "pass" if self.ratio >= self.required else "FAIL"


def median_rate(runs: tuple[Run, ...]) -> float:
    return statistics.median(run.load.rate for run in runs)


def check_answer(
    server: Server, scenario: Scenario, request: Request, expected: np.ndarray
) -> None:
    """Raise AssertionError for numbers other than ONNX Runtime's, or a foreign id."""
    payload = request.payload
    connection = http.client.HTTPConnection(HOST, server.port, timeout=30)
    try:
        connection.request("POST", scenario.path, payload.body, dict(payload.headers))
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    assert response.status == 200, f"{server.name}: {response.status} {body[:500]!r}"
    headers = {name.lower(): value for name, value in response.getheaders()}
    y = read_answer(headers, body)["y"]
    np.testing.assert_allclose(y, expected, TOLERANCE, TOLERANCE)
    document = json.loads(body[: int(headers.get(HEADER_LENGTH, len(body)))])
    assert document.get("id", request.id) == request.id, document["id"]


def check_answers(
    servers: Sequence[Server], scenario: Scenario, mode: Mode, sources: Path
) -> None:
    """Check some answers of each server; `sources` holds the models as NAME.onnx."""
    session = open_session(sources / f"{scenario.model}.onnx")
    for number, request in enumerate(scenario.requests(mode)):
        if number in CHECKED:
            (expected,) = session.run(None, request.inputs)
            for server in servers:
                check_answer(server, scenario, request, expected)


def measure(
    server: Server, requests: Prepared, options: argparse.Namespace, connections: int
) -> Run:
    before = server.cpu()
    load = drive(server.url, requests, connections, options.seconds, wrk=options.wrk)
    used = server.cpu() - before
    return Run(load, used / load.requests if load.requests else 0.0)


def compare(
    servers: tuple[Server, Server],
    scenario: Scenario,
    connections: int,
    requests: Mapping[Mode, Prepared],
    options: argparse.Namespace,
) -> list[Cell]:
    """Measure one cell in each mode. The order is reversed after each round."""
    turns = [(mode, server) for mode in requests for server in servers]
    runs: dict[tuple[Mode, str], list[Run]] = defaultdict(list)
    for number in range(options.rounds):
        for mode, server in turns if number % 2 == 0 else reversed(turns):
            run = measure(server, requests[mode], options, connections)
            runs[mode, server.name].append(run)
    normal = next(iter(requests))
    return [
        Cell(
            scenario.name,
            connections,
            mode,
            scenario.required.get(connections) if mode is normal else None,
            tuple(runs[mode, "reference"]),
            tuple(runs[mode, "gateway"]),
        )
        for mode in requests
    ]


_COLUMNS = f"{'p50':>8} {'p99':>8} {'CPU us':>6}"
HEAD = (
    f"{'scenario':<9} {'conn':>4} {'mode':<6} | {'reference':>9} {_COLUMNS}"
    f" | {'gateway':>9} {_COLUMNS} | {'ratio':>5} {'need':>5}"
)


def row(cell: Cell) -> str:
    """Return the cell as a line: medians over its rounds."""

    def server(runs: tuple[Run, ...]) -> str:
        p50, p99, cpu = (
            statistics.median(values) * 1e6
            for values in (
                [run.load.p50 for run in runs],
                [run.load.p99 for run in runs],
                [run.cpu for run in runs],
            )
        )
        return f"{median_rate(runs):9.0f} {_time(p50)} {_time(p99)} {cpu:6.0f}"

    need = "-" if cell.required is None else f"{cell.required:.2f}"
    return (
        f"{cell.scenario:<9} {cell.connections:>4} {cell.mode:<6}"
        f" | {server(cell.reference)}"
        f" | {server(cell.gateway)} | {cell.ratio:5.2f} {need:>5} {cell.verdict}"
    )


def table(cells: Sequence[Cell]) -> str:
    """Return the ratios of all cells, a line for each with its modes side by side."""
    modes = list(dict.fromkeys(cell.mode for cell in cells))
    lines: dict[tuple[str, int], list[Cell]] = defaultdict(list)
    for cell in cells:
        lines[cell.scenario, cell.connections].append(cell)
    head = "".join(f" {mode:>7}" for mode in modes)
    text = [f"{'gateway / reference':<19}{head}    need"]
    for (scenario, connections), row in lines.items():
        ratios = "".join(f"   x{cell.ratio:4.2f}" for cell in row)
        need = next((f"x{c.required:.2f}" for c in row if c.required is not None), "-")
        verdicts = ", ".join(cell.verdict for cell in row if cell.verdict)
        text.append(f"{scenario:<14} {connections:>4}{ratios} {need:>7} {verdicts}")
    return "\n".join(line.rstrip() for line in text)


def _time(us: float) -> str:
    return f"{us:5.0f} us" if us < 10_000 else f"{us / 1000:5.1f} ms"


def start(stack: ExitStack, names: list[str], folder: Path) -> tuple[Server, Server]:
    """Compile the models of the scenarios and start both servers on them."""
    sources, repository = folder / "onnx", folder / "models"
    paths = write_models(sources, *names)
    compiled = compile_models(list(paths.values()), repository)
    if compiled.returncode != 0:
        sys.exit(f"popgate compile failed:\n{compiled.stdout}{compiled.stderr}")
    port = free_port()
    command = [sys.executable, "-m", "bench.servers.reference"]
    command += ["--models", str(sources), "--port", str(port)]
    reference = stack.enter_context(Server(command, port, name="reference"))
    served = stack.enter_context(gateway(repository))
    for server in (reference, served):
        server.wait_ready()
    return reference, served


def run(options: argparse.Namespace) -> list[Cell]:
    cells = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        chosen = [SCENARIOS[name] for name in options.scenarios]
        names = sorted({scenario.model for scenario in chosen})
        servers = start(stack, names, folder)
        print(HEAD, flush=True)
        for scenario in chosen:
            for mode in options.modes:
                check_answers(servers, scenario, mode, folder / "onnx")
            with sent(scenario, options.modes) as requests:
                for connections in options.connections:
                    made = compare(servers, scenario, connections, requests, options)
                    print(*map(row, made), sep="\n", flush=True)
                    cells += made
    return cells


@contextmanager
def sent(
    scenario: Scenario, modes: Iterable[Mode]
) -> Iterator[Mapping[Mode, Prepared]]:
    """Prepare the requests of each mode."""
    with ExitStack() as stack:
        yield {
            mode: stack.enter_context(
                prepared(scenario.path, (r.payload for r in scenario.requests(mode)))
            )
            for mode in modes
        }


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_choices(parser)
    parser.add_argument("--out", type=Path, help="write all numbers here as JSON")
    options = parser.parse_args(arguments)
    options.wrk = options.client == "wrk"
    return options


def add_choices(parser: argparse.ArgumentParser) -> None:
    """Add the options for what to measure, and for how long."""
    parser.add_argument("--seconds", type=float, default=2, help="of each run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--scenarios",
        type=_scenarios,
        default=list(SCENARIOS),
        help=f"default: {','.join(SCENARIOS)}",
    )
    parser.add_argument(
        "--connections",
        type=lambda text: [int(each) for each in text.split(",")],
        default=list(CONNECTIONS),
        help="default: 1,16,64",
    )
    parser.add_argument(
        "--modes",
        type=_modes,
        default=list(Mode),
        help="default: varied,same (256 requests in turn, one again and again)",
    )
    parser.add_argument(
        "--client", choices=("wrk", "own"), default="wrk" if has_wrk() else "own"
    )


def _modes(text: str) -> list[Mode]:
    try:
        return [Mode(each) for each in text.split(",")]
    except ValueError as error:
        msg = f"{error}; known: {', '.join(Mode)}"
        raise argparse.ArgumentTypeError(msg) from None


def _scenarios(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in SCENARIOS:
            msg = f"unknown scenario {name!r}; known: {', '.join(SCENARIOS)}"
            raise argparse.ArgumentTypeError(msg)
    return names


def main() -> int:
    options = parse()
    machine = describe()
    print(machine)
    print(f"client {options.client}, {options.rounds} rounds of {options.seconds} s")
    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"note: the machine was not idle at the start (load {load:.2f})")
    cells = run(options)
    print(f"\n{table(cells)}")
    busy = max(run.load.client for cell in cells for run in cell.runs)
    if busy > BUSY_CLIENT:
        print(f"note: the client used {busy:.2f} cores of the 1 that it can use")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        document = {
            "machine": machine.as_dict(),
            "client": options.client,
            "modes": options.modes,
            "load_at_start": round(load, 2),
            "cells": [
                {**asdict(cell), "ratio": cell.ratio, "verdict": cell.verdict}
                for cell in cells
            ],
        }
        options.out.write_text(json.dumps(document, indent=1) + "\n")
    return int(any(cell.verdict.startswith("FAIL") for cell in cells))


if __name__ == "__main__":
    sys.exit(main())
