"""Runs the programs of an executable on this machine, in the device process.

The expensive work happens when the executor is made and after load programs have run:
it creates sessions and turns programs into closures. An ordinary main program then
takes a microsecond more than ONNX Runtime's own call.

The weights that load programs stream in are passed to ONNX Runtime when it creates a
graph's session. So sessions of graphs with weights exist only after the load programs
have run. Running the load programs again makes new sessions (frozen inputs, `reload`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from engine.errors import InvalidModel, RunnerClosed
from engine.programs.assembler import Assembler
from engine.programs.dataflow import Dataflow
from engine.programs.executable import Executable, Execute, StreamIn
from engine.programs.program import walk
from engine.programs.session import GraphSession, RunOptions
from engine.programs.streams import Step, Streams
from engine.tensor import Array
from popef_io import DataType, Metadata, Model

__all__ = ("Executor", "RunOptions", "Streams", "make_executor")

_log = logging.getLogger(__name__)

_SessionKey: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]
"""A graph, and the variable that holds each of its weights."""


@dataclass(slots=True)
class _Sessions:
    """The sessions of an executable. An executor and its clones share them."""

    executable: Executable
    threads: int
    providers: tuple[str, ...]
    made: dict[_SessionKey, GraphSession] = field(default_factory=dict)
    ready: dict[str, GraphSession] = field(default_factory=dict)
    """Sessions by graph that were made elsewhere and are not used yet."""

    def make(self, key: _SessionKey, values: Mapping[str, Array]) -> None:
        if key[0] in self.ready:
            self.made[key] = self.ready.pop(key[0])
            return
        graph = self.executable.graphs[key[0]]
        variables = self.executable.variables
        weights = {
            name: (values[variable], variables[variable].data_type)
            for name, variable in key[1]
        }
        _log.debug("making the session of graph %r", graph.name)
        # Imported only here, because a device process of Python models may have no ONNX
        # Runtime.
        from engine.programs.onnx_session import OnnxSession

        try:
            self.made[key] = OnnxSession(
                graph.model, weights, threads=self.threads, providers=self.providers
            )
        except InvalidModel as error:
            raise InvalidModel(f"graph {graph.name!r}: {error}") from None


class Executor:
    """Programs of one executable over one set of variables.

    threads: threads of ONNX Runtime for one operator (default 1). providers: ONNX
    Runtime's execution providers, in order of preference. sessions: existing sessions,
    by graph, with their first weights. new_options: makes the options of a run (None:
    ONNX Runtime's). on_close: called once, when it is closed. Raises InvalidModel if a
    graph cannot be loaded or does not fit its programs. Only one thread may use it at a
    time. `clone` makes a copy for another thread.
    """

    def __init__(
        self,
        executable: Executable,
        metadata: Metadata,
        *,
        threads: int = 1,
        providers: Sequence[str] = ("CPUExecutionProvider",),
        sessions: Mapping[str, GraphSession] | None = None,
        new_options: Callable[[], RunOptions] | None = None,
        on_close: Callable[[], object] | None = None,
    ) -> None:
        self._on_close = on_close
        #: Makes fresh options for one run.
        self.new_options = new_options or _onnx_options()
        self._closed = False
        self._steps: Mapping[int, Step] = {}
        load = frozenset(metadata.program_flow.load)
        self.executable = executable
        self._dataflow = Dataflow.of(executable, load)
        self._keys = _session_keys(executable, self._dataflow)
        self._loads = _weights_loaded_by(executable, load, self._keys)
        made = _Sessions(
            executable, threads, tuple(providers), {}, dict(sessions or {})
        )
        self._use(made, {})
        self._make_sessions(changed=frozenset())

    def clone(self) -> Executor:
        """Return an executor for another thread (a replica on the same device).

        The clone shares the loaded graphs and weights. It has its own variables, which
        start with this executor's values. Loading other weights into one of the two
        does not change the other.
        """
        self._check_open()
        clone, shared = copy(self), self._sessions
        clone._on_close = None
        clone._use(
            replace(shared, made=dict(shared.made), ready={}), dict(self._values)
        )
        clone._steps = clone._assembler.programs()
        return clone

    def run(
        self, programs: Iterable[int], streams: Streams, run_options: RunOptions = None
    ) -> None:
        """Run `programs` one after the other.

        Raises ExecutionFailed if a graph fails (`callers_fault` unless ONNX Runtime
        itself is at fault), Cancelled if `run_options.terminate` was set, InvalidModel
        for a program that does not exist or weights that do not fit, RunnerClosed after
        `close`. Errors of the streams pass through. After an error the variables hold
        the values that were written before it.
        """
        for number in programs:
            step = self._steps.get(number)
            if step is None:
                self._check_open()
                known = sorted(self.executable.programs)
                raise InvalidModel(
                    f"there is no program {number}; the programs are {known}"
                )
            step(streams, run_options)
            if number in self._loads:
                self._make_sessions(self._loads[number])

    def close(self) -> None:
        """Release sessions and variables. Idempotent."""
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()
        self._sessions.made.clear()
        self._values.clear()
        self._steps = {}
        self._closed = True

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._sessions.made)} sessions"
        return f"<Executor programs={list(self.executable.programs)} {state}>"

    def _use(self, sessions: _Sessions, values: dict[str, Array]) -> None:
        """Use these sessions and variables for the steps that are assembled next."""
        executable = self.executable
        self._sessions = sessions
        self._values = values
        self._assembler = Assembler(
            executable,
            self._dataflow,
            values,
            lambda node: sessions.made.get(_key_of(executable, node)),
        )

    def _make_sessions(self, changed: frozenset[str]) -> None:
        """Make the missing sessions that can be made now."""
        made = self._sessions.made
        for key in self._keys:
            variables = {variable for _, variable in key[1]}
            if key in made and not variables & changed:
                continue
            made.pop(key, None)
            if variables <= self._values.keys():
                self._sessions.make(key, self._values)
        self._steps = self._assembler.programs()

    def _check_open(self) -> None:
        if self._closed:
            raise RunnerClosed("the executor is closed")


def _onnx_options() -> Callable[[], RunOptions]:
    """Return the function that makes ONNX Runtime's run options. Loads ONNX Runtime."""
    from engine.programs.onnx_session import make_run_options

    return make_run_options


def _key_of(executable: Executable, node: Execute) -> _SessionKey:
    weights = executable.graphs[node.graph].weights
    return node.graph, tuple((name, node.inputs[name]) for name in weights)


def _session_keys(executable: Executable, dataflow: Dataflow) -> list[_SessionKey]:
    """Return the keys of the sessions that the programs need. Check that each session
    is possible.
    """
    keys: dict[_SessionKey, None] = {}
    for program in executable.programs.values():
        for node in walk(program):
            if isinstance(node, Execute):
                keys.setdefault(_key_of(executable, node))
    for graph, weights in keys:
        for name, variable in weights:
            if variable not in dataflow.load_only:
                raise InvalidModel(
                    f"weight {name!r} of graph {graph!r} must be written by load "
                    "programs only"
                )
            from engine.programs.onnx_session import onnx_number

            data_type = executable.variables[variable].data_type
            if data_type is DataType.STRING or onnx_number(data_type) is None:
                raise InvalidModel(
                    f"weight {name!r} of graph {graph!r} has data type "
                    f"{data_type.name}, which ONNX Runtime does not accept for weights "
                    "outside the graph"
                )
    return list(keys)


def _weights_loaded_by(
    executable: Executable, load: Iterable[int], keys: Iterable[_SessionKey]
) -> dict[int, frozenset[str]]:
    """Return, for each load program, the variables that it writes and that are weights
    of a graph.
    """
    weights = {variable for _, pairs in keys for _, variable in pairs}
    loads = {}
    for number in load:
        if number not in executable.programs:
            raise InvalidModel(
                f"the program flow names program {number}, which does not exist"
            )
        written = {
            node.variable
            for node in walk(executable.programs[number])
            if isinstance(node, StreamIn)
        }
        if written & weights:
            loads[number] = frozenset(written & weights)
    return loads


def make_executor(
    model: Model, threads: int, providers: Sequence[str], check_package_hash: bool
) -> Executor:
    """Return the executor of a model as described in a message of the owner."""
    return Executor(
        Executable.decode(model.executable.raw(), check_digests=check_package_hash),
        model.metadata,
        threads=threads,
        providers=tuple(providers),
    )
