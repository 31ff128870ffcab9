"""Compiles the hot path of this source tree with mypyc: python -m native.build

Needs a C compiler, Python's headers and mypy (which the `dev` extra installs). What it
makes lies in build/compiled/ and is used by every Python of this environment as long as
it matches the sources; see `popgate_compiled`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from native import popgate_compiled as finder
from native.modules import DIRECT_CALLS, c_sources, compiled_sources

ROOT = Path(__file__).resolve().parents[1]
_SETUP = """
from mypyc.build import mypycify
from setuptools import Extension, setup
extensions = mypycify({options!r} + {sources!r},
    opt_level={level!r}, debug_level="0", group_name="popgate")
for extension in extensions:
    extension.extra_compile_args += {direct!r}
setup(name="popgate-compiled", ext_modules=[
    *extensions,
    *(Extension(path.removesuffix(".c").replace("/", "."), [path],
        extra_compile_args=["-O3"]) for path in {in_c!r}),
])
"""


def why_not() -> str:
    """What is missing for compiling; empty where nothing is."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None and shutil.which("cc") is None:
        return "there is no C compiler"
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    if not header.is_file():
        return f"Python's headers are missing ({header.name})"
    return ""


def build(level: str) -> Path:
    """Compile all modules into the folder of this Python; raises CalledProcessError."""
    sources, in_c = compiled_sources(ROOT), c_sources(ROOT)
    folder = ROOT / finder.FOLDER
    recorded = {path: finder.digest(str(ROOT / path)) for path in sources + in_c}
    with tempfile.TemporaryDirectory(prefix="popgate-compile-") as temporary:
        script = Path(temporary, "setup.py")
        options = ["--config-file", str(ROOT / "pyproject.toml")]
        script.write_text(
            _SETUP.format(
                options=options,
                sources=sources,
                level=level,
                in_c=in_c,
                direct=DIRECT_CALLS,
            )
        )
        library = Path(temporary, "library")
        subprocess.run(
            [sys.executable, str(script), "-q", "build_ext",
             "--build-lib", str(library), "--build-temp", f"{temporary}/objects"],
            cwd=ROOT, check=True, capture_output=True, text=True,
        )  # fmt: skip
        write_stamp(library, sources + in_c, recorded)
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(library, folder)
    return folder


def write_stamp(library: Path, sources: list[str], recorded: dict[str, str]) -> None:
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    modules = [str(Path(path).with_suffix("")) for path in sources]
    stamp = {
        "sources": recorded,
        "modules": {module.replace("/", "."): module + suffix for module in modules},
        "group": {finder.GROUP: finder.GROUP + suffix},
    }
    for name in (*modules, finder.GROUP):
        if not (library / (name + suffix)).is_file():
            raise FileNotFoundError(f"the compiler did not make {name + suffix}")
    (library / finder.STAMP).write_text(json.dumps(stamp, indent=1))


def install_finder() -> None:
    """Have every Python of this environment look for compiled modules."""
    packages = Path(sysconfig.get_paths()["purelib"])
    shutil.copyfile(str(finder.__file__), packages / "popgate_compiled.py")
    (packages / "popgate_compiled.pth").write_text(
        "import popgate_compiled; popgate_compiled.install()\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m native.build")
    parser.add_argument(
        "--level", default="3", choices="0123", help="of optimisation (default: 3)"
    )
    parser.add_argument(
        "--if-possible", action="store_true",
        help="exit with 0 where there is no C compiler: all works as plain Python",
    )  # fmt: skip
    options = parser.parse_args()
    if missing := why_not():
        print(f"not compiled: {missing}; PopGate runs as plain Python", file=sys.stderr)
        return 0 if options.if_possible else 1
    if finder.read_stamp(str(ROOT)) is not None:
        install_finder()
        print("the compiled modules are up to date")
        return 0
    began = time.monotonic()
    print("compiling the hot path, which takes about a minute …", flush=True)
    try:
        folder = build(options.level)
    except subprocess.CalledProcessError as error:
        print(error.stdout[-4000:], error.stderr[-4000:], sep="\n", file=sys.stderr)
        print("compiling failed; PopGate runs as plain Python", file=sys.stderr)
        return 1
    install_finder()
    took = time.monotonic() - began
    print(f"compiled in {took:.0f} s to {folder.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
