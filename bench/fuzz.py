"""Test the server against its own OpenAPI document: schemathesis with all checks on.

    python -m bench.fuzz                     # some minutes
    python -m bench.fuzz --examples 20

No answer may be a 5xx, undocumented, or against its schema. The server must refuse
requests that a schema forbids. Exit code 1 if a check failed; schemathesis prints the
requests. The tests do the same with a few requests to each operation.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.cases.models import write_models
from bench.servers.server import HOST, ROOT, compile_models, gateway

MODELS = ("small", "words")
CONFIG = Path(__file__).with_name("schemathesis.toml")


def command(url: str, examples: int, seed: int | None) -> list[str]:
    """Return the command that runs schemathesis against a server."""
    code = "from schemathesis.cli import schemathesis; schemathesis()"
    found = [sys.executable, "-c", code, "--config-file", str(CONFIG), "run"]
    found += [f"{url}/openapi.json", "--continue-on-failure"]
    found += ["--phases", "examples,coverage,fuzzing", "-n", str(examples)]
    return found if seed is None else [*found, "--seed", str(seed)]


def environment() -> dict[str, str]:
    """Return the variables with which schemathesis finds our hooks."""
    hooks = "bench.schemathesis_hooks"
    return {**os.environ, "PYTHONPATH": str(ROOT), "SCHEMATHESIS_HOOKS": hooks}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--examples", type=int, default=100, help="for each operation")
    parser.add_argument("--seed", type=int, help="of a run to repeat")
    parser.add_argument("--seconds", type=float, default=1200.0, help="at most")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="popgate-fuzz-") as name:
        folder = Path(name)
        models = folder / "models"
        sources = folder / "onnx"
        models.mkdir()
        made = compile_models([*write_models(sources, *MODELS).values()], models)
        if made.returncode:
            print(made.stderr)
            return 1
        trace = ("--trace-file", str(folder / "trace.json"))
        with gateway(models, *trace, "--allow-shared-memory") as server:
            server.wait_ready()
            url = f"http://{HOST}:{server.port}"
            result = subprocess.run(
                command(url, options.examples, options.seed),
                cwd=folder,
                env=environment(),
                timeout=options.seconds,
                check=False,
            )
            alive = server.process.poll() is None
    if not alive:
        print("the gateway ended")
    return result.returncode if alive else 1


if __name__ == "__main__":
    sys.exit(main())
