"""Python processes forked from one that has imported what they need.

Importing takes most of what a gateway or a device costs until it works, and the tests
start a thousand. Once this is imported, `subprocess.Popen` starts those of ours that
`_ROLES` knows by their command so, here and in what is started so: from the fork
on they are what the command is, each with its own environment, folder, descriptors,
group and exit. All others are started from nothing, those of ours, too, where the
environment holds anything that is read when modules are imported.

One process for each role belongs to a run. It starts when it is needed first; where a
run has workers, which share it, it starts with the run. It has one thread and listens
for single messages: a job, with its descriptors, is answered with the number of the new
process; `wait` and a number with the status of a process that has ended.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import importlib.util
import io
import itertools
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Any, NoReturn

ROOT = str(Path(__file__).resolve().parents[1])

#: Names the process of a run whose forking processes are used; set in conftest.py.
_RUN = "WARM_TESTS_RUN"
#: How the code of a command ends that runs a script.
_SCRIPT = "from tests.warm import script; script()"
#: What is imported before, by how the code of a command ends.
_ROLES = {
    "from engine.worker.device_process import run; run()": (
        "engine.worker.device_process",
        "onnxruntime",
        "popgate_python_worker.kind",
    ),
    "from popgate_onnx.compiler.fork_server import main; main(sys.argv[1:])": (
        "popgate_onnx.compiler.fork_server",
        "popgate_onnx.compiler.compile",
        "onnx",
    ),
    "from app.cli import main; main()": (
        "app.cli.settings_options",
        "app.assembly",
        "app.main",
        "app.run",
        "popgate_workers.process",
        # Imported by each server when it starts.
        "anyio._backends._asyncio",
        "concurrent.futures.thread",
        "encodings.idna",
        "typer._adapters",
        "typer._click.decorators",
        "uvicorn.loops.uvloop",
        "onnx",
        "tests.warm_plugins",
        "tests.warm_rehearsal",
    ),
    _SCRIPT: ("tests.warm_scripts",),
}
#: Imported where the installed version has them.
_INNER = ("typer.",)
#: Modules that are run by their names, which the last of the roles has imported.
_MODULES = {"popgate_workers.process": "worker"}
#: Read when modules are imported. OpenTelemetry's SDK, which reads more, is not
#: imported before.
_NEVER = ("MODEL_RUNTIME_", "POPEF_", "OTEL_PROPAGATORS", "OTEL_PYTHON_")
_FOR_IMPORTS = (*_NEVER, "PYTHON", "COVERAGE", "LD_")
_HARMLESS = {"PYTHONUNBUFFERED", "PYTHONPATH"}
_MESSAGE = 1 << 17
_DESCRIPTORS = 64
_BACKLOG = 64

_PYTHON = sys.executable
_cold = subprocess.Popen
_servers: dict[str, subprocess.Popen[bytes]] = {}
_starting = threading.Lock()
#: The names of the modules that a fork gives a new generator of ids.
_with_ids: list[dict[str, Any]] = []


class _Popen(subprocess.Popen[Any]):
    """One that forks where it can."""

    _is_warm = False

    def _execute_child(self, *arguments: Any) -> None:
        names = signature(_cold._execute_child).parameters  # type: ignore[attr-defined]
        given = dict(zip(list(names)[1:], arguments, strict=True))
        role = _role(given)
        if role is None:
            super()._execute_child(*arguments)  # type: ignore[misc]
            return
        streams = [
            theirs if theirs >= 0 else ours
            for ours, theirs in enumerate(
                given[name] for name in ("p2cread", "c2pwrite", "errwrite")
            )
        ]
        passed = sorted({*given["pass_fds"]} - {0, 1, 2})
        job = {
            "command": given["args"],
            "cwd": os.path.abspath(given["cwd"] or "."),
            "environment": dict(_environment(given)),
            "descriptors": [0, 1, 2, *passed],
            "session": bool(given["start_new_session"]),
            "files": resource.getrlimit(resource.RLIMIT_NOFILE),
            "cores": sorted(os.sched_getaffinity(0)),
        }
        try:
            self.pid = int(_ask(role, json.dumps(job).encode(), [*streams, *passed]))
        except (
            ConnectionRefusedError
        ):  # nothing forks for it, and this may not start it
            super()._execute_child(*arguments)  # type: ignore[misc]
            return
        self._is_warm = self._child_created = True
        self._close_pipe_fds(  # type: ignore[attr-defined]
            *(given[n] for n in ("p2cread", "p2cwrite", "c2pread", "c2pwrite")),
            *(given[n] for n in ("errread", "errwrite")),
        )
        self._role = role

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if not self._is_warm:
            return super()._try_wait(flags)  # type: ignore[misc, no-any-return]
        try:
            if not _has_ended(self.pid, block=not flags & os.WNOHANG):
                return 0, 0
            return self.pid, int(_ask(self._role, b"wait %d" % self.pid, []))
        except (OSError, ValueError):  # a run that has ended
            return self.pid, 0

    def _internal_poll(self, *arguments: Any, **options: Any) -> int | None:
        if not self._is_warm:
            return super()._internal_poll(*arguments, **options)  # type: ignore[misc, no-any-return]
        if self.returncode is None and self._waitpid_lock.acquire(False):  # type: ignore[attr-defined]
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid == self.pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


subprocess.Popen = _Popen  # type: ignore[misc]


def _environment(given: Mapping[str, Any]) -> Mapping[str, str]:
    return os.environ if given["env"] is None else given["env"]


def _role(given: Mapping[str, Any]) -> str | None:
    """Whose process is to be forked for this; None: it is started from nothing."""
    command = given["args"]
    plain = ("preexec_fn", "startupinfo", "shell")
    above = ("gid", "gids", "uid")
    if (
        not isinstance(command, list)
        or command[0] != _PYTHON
        or given["executable"] not in (None, command[0])
        or not given["close_fds"]
        or any(given[name] for name in plain)
        or any(given[name] is not None for name in above)
        or not _is_usual(_environment(given))
    ):
        return None
    option, code, *_ = *(command[2:] if command[1] == "-P" else command[1:]), "", ""
    if option == "-m" and code in _MODULES:
        return "from app.cli import main; main()"
    if option != "-c":
        return None
    return next((role for role in _ROLES if code.endswith(role)), None)


def _is_usual(environment: Mapping[str, str]) -> bool:
    """Whether nothing in it would have been read by what has been imported already."""
    return (
        environment.get("PYTHONPATH", ROOT) in (ROOT, os.environ.get("PYTHONPATH"))
        and all(
            environment.get(name) == os.environ.get(name)
            for name in {*environment, *os.environ} - _HARMLESS
            if name.startswith(_FOR_IMPORTS)
        )
        and not any(name.startswith(_NEVER) for name in environment)
        and _RUN in os.environ
    )


def _has_ended(pid: int, *, block: bool) -> bool:
    # Nobody waits for it but us: the number stays its own.
    fd = os.pidfd_open(pid)
    try:
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        return bool(poller.poll(None if block else 0))
    finally:
        os.close(fd)


def _ask(role: str, message: bytes, descriptors: list[int]) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        if os.environ[_RUN] == str(os.getpid()):
            _start(role)
        connection.connect(_address(role))
        socket.send_fds(connection, [message], descriptors)
        if answer := connection.recv(_MESSAGE):
            return answer
    raise ConnectionResetError(f"what forks for {role} has ended")


def _address(role: str) -> str:
    return f"\0popgate-tests-{os.environ[_RUN]}-{role.split()[1]}"


def _start(role: str) -> None:
    """Has what forks for it, and for what that starts in turn, at work."""
    roles = _ROLES if "app." in role else {role, next(iter(_ROLES))}
    with _starting:
        for each in roles:
            if each in _servers:
                continue
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.bind(_address(each))
                listener.listen(_BACKLOG)
                code = "from tests.warm import serve; serve()"
                _servers[each] = _cold(
                    [_PYTHON, "-P", "-c", code, str(listener.fileno()), each],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[listener.fileno()],
                    # A pool of threads would not be there after a fork.
                    env={**os.environ, "PYTHONPATH": ROOT, "OPENBLAS_NUM_THREADS": "1"},
                )


def start_all() -> None:
    """Start what forks for all roles. A run does this for its workers."""
    for role in _ROLES:
        _start(role)


def script() -> None:
    """Run the script that the first argument names, as `python SCRIPT` does.

    A command of `tests.warm.forked` runs this in a process that has been forked.
    """
    del sys.argv[0]
    path = Path(sys.argv[0])
    sys.path[0] = str(path.parent)
    main = sys.modules["__main__"]
    main.__file__ = str(path)
    exec(compile(path.read_bytes(), str(path), "exec"), main.__dict__)


def forked(*arguments: str | Path, before: str = "") -> list[str]:
    """Return the command of a script that is forked with our packages imported.

    `before` are statements that run before the script does.
    """
    return [_PYTHON, "-c", before + _SCRIPT, *map(str, arguments)]


def children(pid: int, name: str) -> list[int]:
    """Return the processes of `_MODULES` with a name that `pid` has started.

    Those that were forked are children of the process that forks.
    """
    (module,) = (module for module, called in _MODULES.items() if called == name)
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            started = (entry / "cmdline").read_bytes()
            is_forked = (entry / "comm").read_text() == f"{pid} {name}\n"
            if started and (
                is_forked or (parent == pid and module.encode() in started)
            ):
                found.append(int(entry.name))
    return found


def forkers() -> set[int]:
    """Return the numbers of the processes of this run that fork."""
    return {server.pid for server in _servers.values()}


@atexit.register
def _end() -> None:
    if os.environ.get(_RUN) != str(os.getpid()):
        return  # a fork of a run's
    for server in _servers.values():
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
    _servers.clear()


# -- in the processes that fork


def serve() -> None:
    """Forks until it is ended; returns in what has been forked, once that has run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, number, role = sys.argv
    for name in _ROLES[role]:
        # The core's tests also run where no plugin is installed.
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            continue
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not str(error.name).startswith(_INNER):
                raise
    _with_ids[:] = _sharing_ids()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGTERM, _leave)
    code: object = 0
    try:
        _become(*_Forker(socket.socket(fileno=int(number))).run())
    except SystemExit as end:
        code = 0 if end.code is None else end.code
    # A server has two thousand modules, which take a third of its processor time to
    # take apart. How a script ends is what some tests look at.
    if role != _SCRIPT and isinstance(code, int):
        _exit(code)
    sys.exit(code)  # type: ignore[arg-type]


def _leave(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:  # the run counts their processor time
            pass
    os._exit(0)


class _Forker:
    """Takes messages; and waits for processes whose owners have died, as init does."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._poller = select.poll()
        self._connections: dict[int, socket.socket] = {}
        self._owned: dict[int, set[int]] = {}  # numbers by their owner's
        self._orphans: set[int] = set()
        self._pidfds: dict[int, int] = {}  # to the number of an owner, or an orphan's
        self._poller.register(listener, select.POLLIN)
        # A run that is killed ends nothing: this process sees to its own end.
        self._run_fd = os.pidfd_open(int(os.environ[_RUN]))
        self._poller.register(self._run_fd, select.POLLIN)

    def run(self) -> tuple[dict[str, Any], list[int]]:
        """A job and its descriptors, in a process forked for it."""
        while True:
            for fd, _ in self._poller.poll():
                if fd == self._run_fd:
                    _leave()
                elif fd in self._pidfds:
                    self._ended(fd)
                elif connection := self._connections.pop(fd, None):
                    self._poller.unregister(fd)
                    with connection:
                        if (forked := self._answer(connection)) is not None:
                            return forked
                else:
                    connection, _ = self._listener.accept()
                    self._connections[connection.fileno()] = connection
                    self._poller.register(connection, select.POLLIN)

    def _answer(
        self, connection: socket.socket
    ) -> tuple[dict[str, Any], list[int]] | None:
        message, descriptors, _, _ = socket.recv_fds(connection, _MESSAGE, _DESCRIPTORS)
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4)
        owner = int.from_bytes(peer, sys.byteorder)
        if message.startswith(b"wait "):
            number = int(message.removeprefix(b"wait "))
            _, answer = os.waitpid(number, 0)
            self._owned.get(owner, set()).discard(number)
        elif message:
            answer = os.fork()
            if answer == 0:
                self._close()
                return {**json.loads(message), "owner": owner}, descriptors
            for each in descriptors:
                os.close(each)
            self._watch(owner)
            self._owned.setdefault(owner, set()).add(answer)
        with contextlib.suppress(OSError):
            connection.send(b"%d" % answer)
        return None

    def _watch(self, number: int) -> None:
        if number not in self._pidfds.values():
            fd = os.pidfd_open(number)
            self._pidfds[fd] = number
            self._poller.register(fd, select.POLLIN)

    def _ended(self, fd: int) -> None:
        self._poller.unregister(fd)
        number = self._pidfds.pop(fd)
        os.close(fd)
        for orphan in self._owned.pop(number, ()):
            self._orphans.add(orphan)
            self._watch(orphan)
        # Others have owners that wait for them, and may have owned processes too.
        if number in self._orphans:
            self._orphans.discard(number)
            os.waitpid(number, os.WNOHANG)

    def _close(self) -> None:
        self._listener.close()
        os.close(self._run_fd)
        for connection in self._connections.values():
            connection.close()
        for fd in self._pidfds:
            os.close(fd)


def _become(job: dict[str, Any], descriptors: list[int]) -> None:
    """Runs a command as a Python does that has been started for it."""
    targets = job["descriptors"]
    above = max(*targets, *descriptors) + 1
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for fd in descriptors]
    for fd in descriptors:
        os.close(fd)
    for fd, target in zip(high, targets, strict=True):
        os.dup2(fd, target)
        os.close(fd)
    if job["session"]:
        os.setsid()
    resource.setrlimit(resource.RLIMIT_NOFILE, job["files"])
    os.sched_setaffinity(0, job["cores"])
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["cwd"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _open_streams()
    _make_new_ids()
    command = job["command"][1:]
    if command[0] == "-P":
        del command[0]
    else:
        sys.path.insert(0, "")
    option, code, *arguments = command
    name = _MODULES.get(code, "")
    Path("/proc/self/comm").write_text(f"{job['owner']} {name}")  # for `children`
    if option == "-m":
        module = sys.modules[code]
        sys.argv[:] = [str(module.__file__), *arguments]
        sys.exit(module.main())
    sys.argv[:] = [option, *arguments]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(code, main.__dict__)


def _exit(code: int) -> NoReturn:
    """End as Python does, but leave the modules to the kernel."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _sharing_ids() -> list[dict[str, Any]]:
    """Return the names of the modules that have the generator of the ids of requests.

    To look at two thousand modules in each fork would copy the memory of them all.
    """
    ours = sys.modules.get("app.observe.request_ids")
    if ours is None:
        return []
    shared = ours.new_ids
    found = (getattr(module, "__dict__", {}) for module in list(sys.modules.values()))
    return [names for names in found if names.get("new_ids") is shared]


def _make_new_ids() -> None:
    """Have the ids of requests begin with what no other fork's begin with."""
    begin = os.urandom(5).hex().encode()
    ids = map((b"%b-%%x" % begin).__mod__, itertools.count(1))
    for names in _with_ids:
        names["new_ids"] = ids


def _open_streams() -> None:
    raw = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = io.TextIOWrapper(  # type: ignore[misc]
        os.fdopen(1, "wb", 0 if raw else -1, closefd=False),
        line_buffering=os.isatty(1),
        write_through=raw,
    )
    sys.stderr = sys.__stderr__ = os.fdopen(  # type: ignore[misc]
        2, "w", buffering=1, errors="backslashreplace", closefd=False
    )
