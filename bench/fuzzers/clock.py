"""A simulated clock for the simulators, and an event loop that follows it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

SECOND = 1_000_000_000


class Clock:
    """The clock that replaces the module `time` for the tested code."""

    def __init__(self) -> None:
        self.now = 10 * SECOND

    def monotonic_ns(self) -> int:
        # No two calls return the same time, as on a real machine.
        self.now += 100
        return self.now

    def monotonic(self) -> float:
        return self.monotonic_ns() / 1e9

    def time(self) -> float:
        return 1e9 + self.monotonic()

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def use_no_compiled_modules() -> None:
    """Start this command again without compiled modules, which ignore this clock."""
    if "POPGATE_PURE" not in os.environ:
        environment = {**os.environ, "POPGATE_PURE": "1"}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


@contextlib.contextmanager
def patches() -> Iterator[Callable[[Any, str, object], None]]:
    """Yield a function that sets an attribute of a module until the block ends."""
    with contextlib.ExitStack() as ends:

        def patch(module: Any, name: str, value: object) -> None:
            ends.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, value)

        yield patch


@contextlib.contextmanager
def ruled_by(clock: Clock, package: str) -> Iterator[None]:
    """Make all modules of a package use this clock."""
    looks: dict[str, tuple[object, object]] = {
        "time": (time, clock),
        "monotonic_ns": (time.monotonic_ns, clock.monotonic_ns),
    }
    with patches() as patch:
        for module_name, module in list(sys.modules.items()):
            if module_name.startswith(f"{package}."):
                for name, (real, ruled) in looks.items():
                    if getattr(module, name, None) is real:
                        patch(module, name, ruled)
        yield


class Stuck(Exception):
    """A wait for something that nothing can bring any more."""


class _Leap:
    """Stands for the selector: instead of waiting, the clock jumps."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def select(self, seconds: float | None) -> list[Any]:
        if seconds is None:
            raise Stuck
        if seconds > 0:
            self._clock.now += int(seconds * SECOND) + 1
        return []


class SimulatedLoop(asyncio.BaseEventLoop):
    """An event loop without files and threads, whose clock never waits."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._selector = _Leap(clock)

    def time(self) -> float:
        return self._clock.monotonic()

    def _process_events(self, event_list: list[Any]) -> None:
        """Do nothing: there are no files."""

    def _write_to_self(self) -> None:
        """Do nothing: no other thread exists."""

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run the call here and now; what it returns arrives in the next iteration."""
        done = self.create_future()
        done.set_result(func(*args))
        return done
