"""The process of a device. One thread runs programs, and one thread for each connection
answers messages.

`engine.devices.device_launch` starts it as a new Python. It passes two descriptors: the
listening socket for control messages, and the read end of a pipe that the owner holds
open. When the owner dies, the pipe makes the kernel send SIGKILL, and this process ends
immediately, even if it is busy or stopped. The process also inherits the exclusive
claim on the device. So the device is free only when both owner and process have ended.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import logging
import os
import resource
import socket
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from engine.descriptors import raise_descriptor_limit
from engine.faults import DeviceFault, DeviceFaulted, FaultKind
from engine.fork_guard import hold
from engine.logs import OneLine, label_process
from engine.owner import die_with, leave_ending_to_owner
from engine.transport.shared_memory import keep_large_blocks
from engine.worker.device_service import DeviceService
from engine.worker.python_kind import PythonKind, python_kind
from engine.worker.scheduler import Scheduler

logger = logging.getLogger(__name__)

#: Seconds after which another waiting thread receives the interpreter. The default of 5
#: ms would delay every batch while a model is being loaded.
_SWITCH_INTERVAL = 0.0005


#: prctl(2): the name of this thread, and how late the kernel may end its waits, in
#: nanoseconds. By default that is 50 us, which is half of a short `max_queue_delay`.
_PR_SET_NAME = 15
_PR_SET_TIMERSLACK = 29


def _prctl(option: int, value: object) -> None:
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _giving_back(python: PythonKind | None) -> Callable[[], object]:
    """Return the function that returns memory to the system. A process of Python models
    may have no ONNX Runtime.
    """
    if python is not None:
        return python.give_back_memory
    from engine.programs.onnx_session import give_back_memory

    return give_back_memory


def _hold_inherited() -> None:
    """Keep the listener, the pipe and the claims from processes that a Python model
    starts. These may outlive this process, and the device could not start again.
    """
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2:
            with contextlib.suppress(OSError):  # `listdir` has closed its own
                os.set_inheritable(fd, False)
                hold(fd)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="popgate-device")
    parser.add_argument("--listen-fd", type=int, required=True)
    parser.add_argument("--owner-fd", type=int, required=True)
    parser.add_argument("--spin-us", type=int, default=0)
    parser.add_argument("--name", default="device")
    parser.add_argument("--python", default="")  # the module of a `PythonKind`
    parser.add_argument("--memory", type=int, default=0)
    parser.add_argument("--log-level", type=int, default=logging.WARNING)
    options: Any = parser.parse_args(arguments)
    line = f"%(asctime)s %(levelname)s {options.name} %(name)s: %(message)s"
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(line))
    if options.python:  # the owner logs this line with the model's name
        handler.setFormatter(OneLine("%(levelname)s %(name)s: %(message)s"))
        logging.getLogger("model").setLevel(options.log_level)
    logging.basicConfig(handlers=[handler])
    logging.getLogger("engine").setLevel(options.log_level)
    label_process(options.name)
    _hold_inherited()
    leave_ending_to_owner()
    die_with(options.owner_fd, group=bool(options.python))
    if options.memory:
        resource.setrlimit(resource.RLIMIT_DATA, (options.memory, options.memory))
    _prctl(_PR_SET_NAME, options.name.encode()[:15])
    _prctl(_PR_SET_TIMERSLACK, 1)
    keep_large_blocks()
    raise_descriptor_limit()
    sys.setswitchinterval(_SWITCH_INTERVAL)
    listener = socket.socket(fileno=options.listen_fd)
    listener.setblocking(True)
    python = python_kind(options.python)
    scheduler = Scheduler(
        options.spin_us, _giving_back(python), one_thread=python is not None
    )
    service = DeviceService(listener, scheduler, python)
    service.start()
    try:
        scheduler.run()
    except DeviceFaulted as faulted:
        service.report(faulted.fault)
        return 1
    except BaseException as error:  # an exit would wait for a model's threads
        logger.exception("programs can no longer be run")
        text = f"{type(error).__name__}: {error}"
        service.report(DeviceFault(FaultKind.APPLICATION, text))
        return 1
    return 0


def run() -> NoReturn:
    """Run the whole process, started with the garbage collector off."""
    # Imported objects stay, so the collector need not visit them.
    gc.freeze()
    gc.enable()
    code = main()
    logging.shutdown()
    # Exit without the interpreter's shutdown. It would end session threads as they
    # return from ONNX Runtime, whose code then aborts ("terminate called").
    os._exit(code)


if __name__ == "__main__":
    run()
