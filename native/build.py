"""Compiles the hot path of this source tree with mypyc: python -m native.build

Needs a C compiler and Python's headers; mypy, which the `compile` extra names, is
installed if it is missing. The result lies in build/compiled/ and is used by every
Python of this environment as long as it matches the sources; see `popgate_compiled`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import tomllib
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

from native import popgate_compiled as finder
from native.modules import c_sources, compiled_sources, module_file, module_name

ROOT = Path(__file__).resolve().parents[1]
#: The C compiler's optimisation level. Wheels use 3. This level compiles in a quarter
#: less time, and a request takes a twentieth more processor time (bench/LOG.md).
LEVEL = "1"
#: The messages of a compiler that failed.
LOG = ROOT / "build" / "compile.log"


def why_not() -> str:
    """Return what is missing for compiling; empty if nothing is missing."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None and shutil.which("cc") is None:
        return "there is no C compiler"
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    if not header.is_file():
        return f"Python's headers are missing ({header.name})"
    return ""


def install_requirements() -> None:
    """Install the packages of the `compile` extra. Raises CalledProcessError."""
    if find_spec("mypy") and find_spec("setuptools"):
        return
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    _run("-m", "pip", "install", "-q", *project["optional-dependencies"]["compile"])


def build() -> Path:
    """Compile all modules into the folder of this Python. Raises CalledProcessError."""
    sources = compiled_sources(ROOT) + c_sources(ROOT)
    folder = ROOT / finder.FOLDER
    recorded = {path: finder.digest(str(ROOT / path)) for path in sources}
    with tempfile.TemporaryDirectory(prefix="popgate-compile-") as temporary:
        library = Path(temporary, "library")
        _run("setup.py", "-q", "build_ext", "--build-lib", str(library),
             "--build-temp", f"{temporary}/objects")  # fmt: skip
        write_stamp(library, sources, recorded)
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Rename in one step, so that a process that starts now finds all modules or
        # none.
        beside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".new-"))
        try:
            shutil.move(library, beside / "library")
            (beside / "library").rename(folder)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    return folder


def _run(*arguments: str) -> None:
    environment = {"POPGATE_OPT_LEVEL": LEVEL, **os.environ, "POPGATE_COMPILE": "1"}
    subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT, check=True, capture_output=True, text=True, env=environment,
    )  # fmt: skip


def write_stamp(library: Path, sources: list[str], recorded: dict[str, str]) -> None:
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    modules = {
        module_name(path): str(Path(module_file(path)).with_suffix("")) + suffix
        for path in sources
    }
    group = finder.GROUP + suffix
    stamp = {"sources": recorded, "modules": modules, "group": {finder.GROUP: group}}
    for name in (*modules.values(), group):
        if not (library / name).is_file():
            raise FileNotFoundError(f"the compiler did not make {name}")
    (library / finder.STAMP).write_text(json.dumps(stamp, indent=1))


def install_finder() -> None:
    """Make every Python of this environment look for compiled modules."""
    packages = Path(sysconfig.get_paths()["purelib"])
    shutil.copyfile(str(finder.__file__), packages / "popgate_compiled.py")
    (packages / "popgate_compiled.pth").write_text(
        "import popgate_compiled; popgate_compiled.install()\n"
    )


def wait_for_server(server: int, url: str) -> bool:
    """Wait until the server with this process id reports at `url` that it has started.

    Return False if the process ends before that.
    """
    ended = os.pidfd_open(server)
    while not select.select([ended], [], [], 0.2)[0]:
        with contextlib.suppress(OSError), urlopen(f"{url}/v1/health/startup"):
            return True
    return False


def end_with(server: int) -> None:
    """Make this process and its child processes end when the server ends."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))

    def watch() -> None:
        select.select([os.pidfd_open(server)], [], [])
        os.killpg(0, signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def tell_progress(began: float) -> None:
    """Print every 15 seconds that this process still compiles."""

    def tell() -> None:
        while True:
            time.sleep(15)
            seconds = time.monotonic() - began
            print(f"compiling the hot path: {seconds:.0f} s ...", flush=True)

    threading.Thread(target=tell, daemon=True).start()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m native.build")
    parser.add_argument(
        "--if-possible", action="store_true",
        help="exit with 0 if it cannot be compiled: all works as plain Python",
    )  # fmt: skip
    parser.add_argument(
        "--beside", type=int, metavar="PID",
        help="begin when this server answers at --url, give way to it, end with it",
    )  # fmt: skip
    parser.add_argument("--url", default="", help="where that server answers")
    given = parser.parse_args()
    failed = 0 if given.if_possible else 1
    if given.beside is not None:
        try:
            if not wait_for_server(given.beside, given.url):
                return failed
            end_with(given.beside)
        except ProcessLookupError:
            return failed
        os.nice(19)
    if missing := why_not():
        print(f"not compiled: {missing}; PopGate runs as plain Python", file=sys.stderr)
        return failed
    if finder.read_stamp(str(ROOT)) is not None:
        install_finder()
        return 0
    began = time.monotonic()
    beside = " beside the server" if given.beside is not None else ""
    print(f"compiling the hot path{beside} (about a minute on two cores)", flush=True)
    tell_progress(began)
    try:
        install_requirements()
        folder = build()
        install_finder()
    except (subprocess.CalledProcessError, OSError) as error:
        said = str(error)
        if isinstance(error, subprocess.CalledProcessError):
            said = f"{error}\n{error.stdout}\n{error.stderr}"
        LOG.parent.mkdir(exist_ok=True)
        LOG.write_text(said)
        print(
            f"compiling failed, {LOG.relative_to(ROOT)} says why; "
            "PopGate runs as plain Python",
            file=sys.stderr,
        )
        return failed
    took = time.monotonic() - began
    used = "; the next start uses it" if beside else ""
    print(f"compiled in {took:.0f} s to {folder.relative_to(ROOT)}{used}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
