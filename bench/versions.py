"""Compare this version with an earlier one, in one run and interleaved.

    python -m bench.versions COMMIT
    python -m bench.versions COMMIT --pure --scenarios S-json,M-json
    python -m bench.versions COMMIT --compiled
    python -m bench.versions ../other-tree

Checks the earlier commit out into a temporary folder (or takes a folder as it is, with
the hot path compiled there or not), compiles the models and serves them with each
version's own commands, drives both in turns with the requests of `bench.compare`, in
its modes (256 that differ, the same one again and again), and prints requests per
second, the processor time of the gateway and of its devices a request, and the ratios
of this version to the earlier one: medians over the rounds of each pair of neighbours.

This version uses its compiled hot path if that is up to date (docs/how-to/tune.md);
`--pure` runs both as plain Python. `--compiled` compiles both first (some minutes),
each with its own `native.build` at -O3. The earlier version then runs in a virtual
environment made for it, because a hook of the environment loads the compiled modules. A
version that is compiled already, at any level, stays as it is.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.cases.models import write_models
from bench.cases.scenarios import SCENARIOS, Mode, Scenario
from bench.compare import add_choices, check_answers, sent
from bench.drivers.load import Prepared, drive
from bench.servers.machine import describe
from bench.servers.processes import cpu_seconds
from bench.servers.server import ROOT, Server, compile_models, gateway

HEAD = (
    f"{'scenario':<9} {'conn':>4} {'mode':<6}"
    f" | {'rate then':>9} {'gateway':>8} {'device':>8}"
    f" | {'rate now':>9} {'gateway':>8} {'device':>8} | {'rate':>6} {'CPU':>6}"
)


@dataclass(frozen=True, slots=True)
class Run:
    """Requests per second, and microseconds of processor time for each request."""

    rate: float
    gateway: float
    devices: float

    @property
    def cpu(self) -> float:
        return self.gateway + self.devices


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Yield a folder with the files of a commit, or the given folder."""
    if Path(commit).is_dir():
        yield Path(commit).resolve()
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "archive", commit], cwd=ROOT, check=True, stdout=subprocess.PIPE
        )
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        yield Path(folder)


def environment(tree: Path, number: int, *, pure: bool) -> dict[str, str]:
    """Return variables that make Python import a tree's packages, and no other's."""
    places = [tree, tree / "compat", *sorted(tree.glob("plugins/*/src"))]
    variables = {
        "PYTHONPATH": os.pathsep.join(map(str, places)),
        "PYTHONSAFEPATH": "1",
        "POPGATE_POOL": f"bench-{os.getpid()}-{number}",
    }
    return {**variables, "POPGATE_PURE": "1"} if pure else variables


def environment_beside(folder: Path) -> str:
    """Return the Python of a new virtual environment in `folder` that has the
    packages of this one, and no hooks of it.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    python = str(folder / "bin" / "python")
    ask = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    packages = subprocess.run(
        [python, "-c", ask], check=True, capture_output=True, text=True
    ).stdout.strip()
    # Python reads .pth files only in an environment's own folder, so it skips the
    # hooks.
    Path(packages, "packages.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return python


def compile_hot_path(tree: Path, python: str) -> None:
    """Compile a tree by its own means, for an environment."""
    done = subprocess.run(
        [python, "-m", "native.build"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "POPGATE_OPT_LEVEL": "3"},
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{tree} could not be compiled")


def serve(
    tree: Path,
    sources: list[Path],
    name: str,
    *,
    pure: bool,
    python: str = sys.executable,
) -> Server:
    """Compile the models and serve them with the commands of a tree."""
    variables = environment(tree, len(name), pure=pure)
    repository = sources[0].parent / name
    made = compile_models(sources, repository, environment=variables, python=python)
    if made.returncode != 0:
        sys.exit(f"popgate compile failed ({name}):\n{made.stdout}{made.stderr}")
    return gateway(repository, environment=variables, name=name, python=python)


def measure(
    server: Server, requests: Prepared, connections: int, options: argparse.Namespace
) -> Run:
    gateway, *devices = server.pids()
    before = cpu_seconds([gateway]), cpu_seconds(devices)
    load = drive(server.url, requests, connections, options.seconds, wrk=options.wrk)
    if load.not_ok or load.broken:
        sys.exit(f"{server.name}: {load.not_ok + load.broken} requests were not ok")
    each = 1e6 / max(1, load.requests)
    return Run(
        load.rate,
        (cpu_seconds([gateway]) - before[0]) * each,
        (cpu_seconds(devices) - before[1]) * each,
    )


def row(
    scenario: Scenario, connections: int, mode: Mode, pairs: list[tuple[Run, Run]]
) -> str:
    def shown(runs: list[Run]) -> str:
        middle = [
            statistics.median(values)
            for values in (
                [run.rate for run in runs],
                [run.gateway for run in runs],
                [run.devices for run in runs],
            )
        ]
        return f"{middle[0]:9.0f} {middle[1]:5.1f} us {middle[2]:5.1f} us"

    then, now = [list(runs) for runs in zip(*pairs, strict=True)]
    rate = statistics.median(n.rate / t.rate for t, n in pairs)
    cpu = statistics.median(n.cpu / t.cpu for t, n in pairs)
    return (
        f"{scenario.name:<9} {connections:>4} {mode:<6} | {shown(then)} | {shown(now)}"
        f" | x{rate:5.2f} x{cpu:5.2f}"
    )


def in_turns(
    servers: list[Server],
    requests: Mapping[Mode, Prepared],
    connections: int,
    options: argparse.Namespace,
) -> dict[Mode, list[tuple[Run, Run]]]:
    """Measure both versions in each mode, one right after the other in every round."""
    pairs: dict[Mode, list[tuple[Run, Run]]] = {mode: [] for mode in requests}
    for number in range(options.rounds):
        order = servers if number % 2 else servers[::-1]
        for mode, sent_then in requests.items():
            runs = {
                server.name: measure(server, sent_then, connections, options)
                for server in order
            }
            pairs[mode].append((runs["then"], runs["this one"]))
    return pairs


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", help="the earlier version, or its folder")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--pure", action="store_true", help="plain Python, both")
    kind.add_argument("--compiled", action="store_true", help="compile both first")
    add_choices(parser)
    options = parser.parse_args()
    options.wrk = options.client == "wrk"
    print(describe())
    with ExitStack() as stack:
        tree = stack.enter_context(checked_out(options.commit))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pythons = {"then": sys.executable, "this one": sys.executable}
        if options.compiled:
            pythons["then"] = environment_beside(folder / "environment")
            compile_hot_path(tree, pythons["then"])
            compile_hot_path(ROOT, pythons["this one"])
        chosen = [SCENARIOS[name] for name in options.scenarios]
        names = sorted({scenario.model for scenario in chosen})
        sources = list(write_models(folder, *names).values())
        servers = [
            stack.enter_context(
                serve(root, sources, name, pure=options.pure, python=pythons[name])
            )
            for root, name in ((tree, "then"), (ROOT, "this one"))
        ]
        for server in servers:
            server.wait_ready()
        print(HEAD, flush=True)
        for scenario in chosen:
            for mode in options.modes:
                check_answers(servers, scenario, mode, folder)
            with sent(scenario, options.modes) as requests:
                for connections in options.connections:
                    pairs = in_turns(servers, requests, connections, options)
                    for mode in options.modes:
                        shown = row(scenario, connections, mode, pairs[mode])
                        print(shown, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
