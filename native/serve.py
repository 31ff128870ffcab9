"""Start the server at once, and compile the hot path while it runs.

    python -m native.serve --url http://127.0.0.1:8000 -- -m models --port 8000

This process becomes `popgate serve` with the arguments after ``--``. Another process
waits until the server answers at `--url`. It then compiles at the lowest priority, and
ends with the server. The server goes on as plain Python. The next start uses the
compiled modules.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from native import popgate_compiled as finder
from native.build import ROOT, install_finder, why_not


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m native.serve")
    parser.add_argument("--url", required=True, help="where the server will answer")
    parser.add_argument("--no-compile", action="store_true", help="only serve")
    parser.add_argument("arguments", nargs="*", help="of popgate serve, behind --")
    given = parser.parse_args()
    if not given.no_compile:
        _prepare(given.url)
    command = str(Path(sys.executable).with_name("popgate"))
    os.execv(command, [command, "serve", *given.arguments])


def _prepare(url: str) -> None:
    """Use the compiled modules if they match the sources, else start compiling them."""
    if missing := why_not():
        print(f"not compiled: {missing}; PopGate runs as plain Python", file=sys.stderr)
    elif finder.read_stamp(str(ROOT)) is not None:
        install_finder()
    else:
        command = [sys.executable, "-m", "native.build", "--if-possible"]
        command += ["--beside", str(os.getpid()), "--url", url]
        # Start a child of a child, because the server does not expect children that it
        # did not start.
        child = os.fork()
        if child == 0:
            subprocess.Popen(command, cwd=ROOT, start_new_session=True)
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
