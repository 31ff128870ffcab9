"""What the tests of all packages share: waiting for a condition, never for a time."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from engine import ModelRunner, Tensor

#: Seconds that anything may take on a machine that is busy with something else.
WAIT = 90.0
#: Hours of work of `models.slow`: a test that waits for it never ends.
FOR_EVER = 1_000_000_000


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Be a user whom modes bind; root may read everything."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


def until(condition: Callable[[], object], what: object = "it did not come") -> None:
    """Wait for a condition. Else fail with `what`, or with what it returns.

    To look often costs a request, and what it waits for needs the core, too: a pause is
    an eighth of the time waited, within bounds.
    """
    start = time.monotonic()
    while not condition():
        waited = time.monotonic() - start
        assert waited < WAIT, what() if callable(what) else what
        threading.Event().wait(min(max(0.005, waited / 8), 0.1))


def accepts(address: str) -> bool:
    """Return whether a server listens on a Unix socket. A client of httpx that is
    refused leaves a socket that it does not close.
    """
    with socket.socket(socket.AF_UNIX) as attempt:
        return attempt.connect_ex(address) == 0


def is_gone(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


@contextlib.contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Lets no file of this process grow beyond so many bytes, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def no_descriptors(but: int = 0) -> Iterator[None]:
    """Lets this process open no further descriptors, or so few, until the end of the
    block.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    names = os.listdir("/proc/self/fd")  # with the one of the folder, which has ended
    used = {int(name) for name in names if Path("/proc/self/fd", name).exists()}
    free = [number for number in range(len(used) + but + 1) if number not in used]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[but] if but else 3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def occupied(runner: ModelRunner) -> Iterator[None]:
    """Lets the device of `runner`, of `models.slow`, run something to the end of the
    block: what is submitted meanwhile waits, however long submitting takes."""
    (device,) = set(runner.devices)
    until(lambda: device.ping().running_ns == 0)
    work = Tensor.from_numpy(np.array(FOR_EVER, np.int64))
    request = runner.submit({"count": work})
    until(lambda: device.ping().running_ns > 0)
    try:
        yield
    finally:
        request.cancel()
