"""Decides whether rows may be mixed in an executable that another program made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from engine.errors import InvalidModel
from engine.programs.executable import Executable, Execute, Steps, StreamIn, StreamOut
from engine.programs.onnx_session import OnnxSession, make_run_options
from engine.programs.time_limit import TimeLimit
from engine.tensor import Array
from popgate_onnx.compiler.interface import Interface
from popgate_onnx.compiler.options import BatchDecision, CompileOptions
from popgate_onnx.compiler.rows.batching import decide
from popgate_onnx.compiler.source import read_model
from popgate_onnx.compiler.weights import Weight


def decide_rows(
    executable: Executable,
    main: int,
    weights: Mapping[str, Array],
    options: CompileOptions,
) -> BatchDecision:
    """Decide whether rows of different requests may share a run of the program `main`.

    They may if the program is one graph between streams and keeps no state. `weights`
    maps variables to their weights. Raises InvalidModel for a graph that cannot be
    loaded.
    """
    if options.batch == "off":
        return BatchDecision(False, 0, "batching is switched off")
    single = _single(executable, main)
    if isinstance(single, str):
        return BatchDecision(False, 0, single)
    graph = executable.graphs[single.graph]
    held = [
        Weight(
            name,
            executable.variables[single.inputs[name]],
            weights[single.inputs[name]],
        )
        for name in graph.weights
    ]
    proto = read_model(graph.model).proto
    data = {w.name: (w.data, w.info.data_type) for w in held}
    session = OnnxSession(graph.model, data, threads=options.threads)
    interface = Interface.of(proto, session)
    sizes = {
        tensor.shape[0] if tensor.shape else 0
        for tensor in (*interface.inputs, *interface.outputs)
    }
    (size,) = sizes if len(sizes) == 1 else (0,)
    if not isinstance(size, int) or not size:
        reason = "its inputs and outputs do not share one free first dimension"
        return BatchDecision(False, 0, reason)
    limit = TimeLimit(options.check_limit, make_run_options)

    names = list(session.outputs)

    def run(feed: dict[str, Array]) -> dict[str, Array]:
        try:
            results = session.raw_run(names, feed, limit.options)
        except Exception as error:  # pybind's classes share no public base
            raise session.error_of(error, limit.options) from None
        return dict(zip(names, results, strict=True))

    with limit:
        fixed = replace(options, batch=size)
        return decide(proto, interface, held, run, fixed, limit)


def _single(executable: Executable, main: int) -> Execute | str:
    """Return the only graph of a program, or the reason why there is no such graph."""
    program = executable.programs.get(main)
    if not isinstance(program, Steps):
        raise InvalidModel(f"program {main} must exist and be a sequence")
    executes = [node for node in program.nodes if isinstance(node, Execute)]
    others = {type(node) for node in program.nodes} - {StreamIn, StreamOut, Execute}
    if len(executes) != 1 or others:
        return "its program has other nodes than one graph between streams"
    streamed = frozenset(n.variable for n in program.nodes if isinstance(n, StreamIn))
    graph = executable.graphs[executes[0].graph]
    given = {v for k, v in executes[0].inputs.items() if k not in graph.weights}
    if given - streamed:
        return "it keeps state from run to run"
    return executes[0]
