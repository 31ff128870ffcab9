"""Files of a load request, kept as long as the model made from them.

They are written below a folder of this process in the cache. The process locks the
folder and removes it at its end. If a process was killed, the next one removes its
folder. The lock is the kernel's, so it ends with its process.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

logger = logging.getLogger(__name__)

_LOCK = ".lock"
_PREFIX = "load-"
_NEW = ".new-"


class Uploads:
    """The uploaded files of one process. For one thread at a time."""

    def __init__(self, folder: Path) -> None:
        """Make nothing until something is stored."""
        self._wanted = folder
        self._mine: Path | None = None
        self._lock = -1

    def sweep(self) -> None:
        """Remove the files of processes that have ended."""
        for folder in self._wanted.glob(f"{_PREFIX}*"):
            if folder == self._mine:
                continue
            with contextlib.suppress(OSError):
                lock = _locked(folder)
                if lock >= 0:
                    shutil.rmtree(folder, ignore_errors=True)
                    os.close(lock)

    def store(self, name: str, files: Mapping[str, bytes]) -> Path:
        """Write the files of a model; return the folder, a repository with this model
        alone.

        Paths and name have been checked. Raises OSError.
        """
        root = Path(tempfile.mkdtemp(dir=self._folder()))
        try:
            for path, content in files.items():
                target = root / name / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
        except BaseException:
            self.remove(root)
            raise
        return root

    def remove(self, root: Path) -> None:
        """Remove a folder that `store` returned."""
        shutil.rmtree(root, ignore_errors=True)

    def close(self) -> None:
        """Remove everything."""
        if self._mine is not None:
            shutil.rmtree(self._mine, ignore_errors=True)
            os.close(self._lock)
            self._mine, self._lock = None, -1

    def _folder(self) -> Path:
        """Return the folder of this process, which only its user may open."""
        if self._mine is not None:
            return self._mine
        base = self._wanted
        try:
            base.mkdir(parents=True, exist_ok=True)
            made = Path(tempfile.mkdtemp(prefix=_NEW, dir=base))
        except OSError as e:
            # A read-only cache must not prevent a load. Another user could have made
            # a folder of a fixed name before.
            made = Path(tempfile.mkdtemp(prefix=f"popgate-{_PREFIX}"))
            base = made.parent
            logger.warning("uploaded files are written to %s: %s", made, e)
        self._lock = _locked(made)
        # Other processes may check the lock only from here on.
        mine = made.rename(base / made.name.replace(_NEW, _PREFIX))
        self._mine = mine.resolve()
        return self._mine

    def __repr__(self) -> str:
        return f"<Uploads {self._mine or self._wanted}>"


def _locked(folder: Path) -> int:
    """Return a descriptor with the folder's lock; -1 if another process has it."""
    fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return -1
    return fd
