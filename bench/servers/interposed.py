"""Count the memory, the copies and the wake-ups of servers, from outside them.

`interposed.c` is a library that stands between a process and libc. It writes its
counts into a file for each process. Build the library with `build`, start a server with
`environment`, and read the files with `read`. This needs a C compiler and glibc.
"""

from __future__ import annotations

import platform
import shutil
import struct
import subprocess
from pathlib import Path
from typing import NamedTuple, Self

SOURCE = Path(__file__).with_suffix(".c")


class Interposed(NamedTuple):
    """Counts of all threads of a process since its start.

    Attributes:
        blocks: blocks that malloc, calloc and realloc gave out.
        large_blocks: those of at least 64 KiB.
        copied: bytes that memcpy and memmove copied, in copies of at least 4 KiB.
        waits: waits for descriptors that ended because one of them was ready.
        signals: signals that a thread took from an eventfd.
    """

    blocks: int
    large_blocks: int
    copied: int
    waits: int
    signals: int

    def since(self, earlier: Self) -> Interposed:
        """Return the difference to an earlier count of the process."""
        return Interposed(*(new - old for new, old in zip(self, earlier, strict=True)))


_WORDS = struct.Struct(f"={len(Interposed._fields)}Q")


def can_build() -> bool:
    """Return whether `build` works here: there are a C compiler and glibc."""
    return shutil.which("cc") is not None and platform.libc_ver()[0] == "glibc"


def build(folder: Path) -> Path:
    """Compile the library into `folder`. Raise CalledProcessError if that fails."""
    library = folder / "interposed.so"
    command = ["cc", "-O2", "-shared", "-fPIC", "-fno-builtin", "-Wall", "-Wextra"]
    command += ["-Werror", str(SOURCE), "-o", str(library), "-ldl"]
    subprocess.run(command, check=True)
    return library


def environment(library: Path, folder: Path) -> dict[str, str]:
    """Return the variables of a process that writes its counts to a file in `folder`.

    Its children do so, too. Python gets each object from malloc, without a pool. Its
    branches are not counted beside (`make coverage`), because that takes memory.
    """
    return {
        "COUNTED_FOLDER": str(folder),
        "COVERAGE_PROCESS_CONFIG": "",
        "COVERAGE_PROCESS_START": "",
        "LD_PRELOAD": str(library),
        "PYTHONMALLOC": "malloc",
    }


def read(folder: Path, pid: int) -> Interposed:
    """Return the counts of a process so far."""
    return Interposed(*_WORDS.unpack((folder / str(pid)).read_bytes()))
