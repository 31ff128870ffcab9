"""Compile ONNX models to a container that a device can run."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.errors import InvalidConfig, InvalidModel
from engine.model.anchors import OPTION_FUSED, OPTION_LABELS
from engine.model.ragged import OPTION_RAGGED, OPTION_RAGGED_REASON
from engine.programs.executable import Steps, StreamIn, Switch
from engine.programs.executor import Executor
from engine.programs.onnx_session import OnnxSession, make_run_options
from engine.programs.time_limit import TimeLimit
from popef_io import Option, PopefError, TensorType
from popgate_onnx.compiler.conversions import Labels, convert
from popgate_onnx.compiler.divisions import guard_divisions
from popgate_onnx.compiler.empty_inputs import guard_empty_inputs
from popgate_onnx.compiler.external_data import ExternalFiles
from popgate_onnx.compiler.frames import guard_frames
from popgate_onnx.compiler.functions import inline_functions
from popgate_onnx.compiler.interface import (
    Interface,
    change,
    check_types,
    free_rows,
    renamed,
)
from popgate_onnx.compiler.loading import load_graph
from popgate_onnx.compiler.options import (
    BatchDecision,
    CompileOptions,
    CompileReport,
    Progress,
    TensorReport,
)
from popgate_onnx.compiler.package import (
    LOAD,
    MAIN,
    Package,
    PackagePart,
    WeightStreams,
    input_handle,
    make_package,
    output_handle,
    selector_anchor,
)
from popgate_onnx.compiler.ranks import guard_ranks
from popgate_onnx.compiler.rows.batching import decide
from popgate_onnx.compiler.rows.lengths import shown_lengths
from popgate_onnx.compiler.rows.row_check import Dependent, Run
from popgate_onnx.compiler.rows.row_proof import wrongly_fixed
from popgate_onnx.compiler.source import OnnxModel, OnnxSource, read_model
from popgate_onnx.compiler.sums import make_sums_exact
from popgate_onnx.compiler.weights import Weight, drop_unused, take_inside, take_out

_log = logging.getLogger(__name__)

_PENDING = BatchDecision(False, 0, "not decided yet")
_MAX_OPTION = 1 << 16
"""The most characters of a metadata value that are kept from the source."""


def compile_model(
    source: OnnxSource,
    target: str | Path,
    options: CompileOptions | None = None,
    progress: Progress | None = None,
) -> CompileReport:
    """Compile an ONNX model into a container at `target`, which it replaces.

    `source` is a path, the bytes of a file, or an `onnx.ModelProto` (not changed). The
    same source and options give the same bytes. Raises InvalidModel, naming the node or
    tensor, for a model that cannot run or be served. Raises OSError if a file cannot be
    read or written. Thread-safe. `target` is only written if compiling succeeds.
    """
    options = options or CompileOptions()
    say = progress or _silent
    say("reading", 0.0)
    loaded = _load_model(source, options, prefix="", graph="main", progress=say)
    name = options.name or loaded.source.name
    package = make_package(name, [loaded.part], loaded.part.main, _PENDING)
    limit = TimeLimit(options.check_limit, make_run_options)
    with _Trial(package, {"main": loaded.session}, options.threads) as trial, limit:
        say("checking rows", 0.6)
        decision = decide(
            loaded.source.proto,
            loaded.part.interface,
            loaded.part.weights,
            trial.run(loaded.part, limit),
            options,
            limit,
        )
        lengths = _lengths(loaded.part, decision, trial, options, limit)
    notes = _notes(loaded.source.proto, options) + _labels(loaded.labels) + lengths
    final = make_package(name, [loaded.part], loaded.part.main, decision, notes)
    return _write(final, Path(target), decision, say)


def compile_fused(
    sources: Sequence[tuple[str, OnnxSource]],
    target: str | Path,
    selector: str = "index",
    options: CompileOptions | None = None,
    progress: Progress | None = None,
) -> CompileReport:
    """Compile several models into one container. Each run executes one of them.

    The input `selector` (one integer) chooses the model: 0 for the first, and so on.
    Inputs, outputs and weights are called `<name>/<tensor>`. A run reads and writes
    only the tensors of the chosen model. Rows are never mixed. The options `batch`,
    `inputs`, `outputs` and `shapes` are not allowed here. Raises what `compile_model`
    raises.
    """
    options = options or CompileOptions()
    names = [name for name, _ in sources]
    if not names or len(set(names)) < len(names) or not all(names):
        raise InvalidConfig(
            f"each fused model must have a name of its own, got {names}"
        )
    if options.inputs or options.outputs or options.shapes or options.batch != "auto":
        raise InvalidConfig(
            "fused models cannot have renamed inputs or outputs, set shapes or a batch"
        )
    say = progress or _silent
    parts: list[PackagePart] = []
    labels: Labels = {}
    sessions: dict[str, OnnxSession] = {}
    alone = replace(options, batch="off")
    for number, (name, source) in enumerate(sources):
        say(f"reading {name}", number / len(sources) * 0.8)
        try:
            loaded = _load_model(source, alone, f"{name}/", name, _silent)
        except InvalidModel as error:
            raise InvalidModel(f"{name}: {error}") from None
        parts.append(loaded.part)
        labels |= loaded.labels
        sessions[name] = loaded.session
    anchor = selector_anchor(selector)
    cases = {number: part.main for number, part in enumerate(parts)}
    choose = f"input {selector}"
    main = Steps((StreamIn(anchor.handle, choose), Switch(choose, cases)))
    chosen = ", ".join(f"{number}: {name}" for number, name in enumerate(names))
    decision = BatchDecision(False, 0, f"{selector!r} chooses a model for each run")
    package = make_package(
        options.name or "fused",
        parts,
        main,
        decision,
        [*_user_notes(options), *_labels(labels), Option(OPTION_FUSED, chosen)],
        anchor,
    )
    with _Trial(package, sessions, options.threads):
        return _write(package, Path(target), decision, say)


def _lengths(
    part: PackagePart,
    decision: BatchDecision,
    trial: _Trial,
    options: CompileOptions,
    limit: TimeLimit,
) -> list[Option]:
    """Check whether rows of different length may run together, for the metadata."""
    if not options.ragged:
        return []
    run = trial.run(part, limit)
    try:
        shown = shown_lengths(part, run, decision, options, limit)
    except Dependent as found:
        _log.info("rows of different length run alone: %s", found)
        return [Option(OPTION_RAGGED_REASON, str(found))]
    reason = "rows give the same answers alone and padded beside longer ones"
    return [
        Option(OPTION_RAGGED, shown.to_text()),
        Option(OPTION_RAGGED_REASON, reason),
    ]


@dataclass(frozen=True, slots=True)
class _Loaded:
    source: OnnxModel
    part: PackagePart
    session: OnnxSession
    labels: Labels


def _load_model(
    source: OnnxSource,
    options: CompileOptions,
    prefix: str,
    graph: str,
    progress: Progress,
) -> _Loaded:
    model = read_model(source)
    inline_functions(model.proto)
    labels = convert(model.proto)
    guard_divisions(model.proto)
    guard_frames(model.proto)
    guard_empty_inputs(model.proto)
    guard_ranks(model.proto)
    make_sums_exact(model.proto)
    check_types(model.proto)
    change(model.proto, options)
    drop_unused(model.proto.graph)
    files = ExternalFiles(model.folder)
    weights: list[Weight] = []
    if options.weights == "data":
        weights = take_out(model.proto, files, options.weights_from)
    else:
        take_inside(model.proto, files)
    progress("loading", 0.2)
    compiled, session = load_graph(model.proto, graph, weights, options.threads)
    interface = Interface.of(model.proto, session)
    wrong = wrongly_fixed(model.proto, interface)
    if wrong:
        free_rows(model.proto, wrong)
        compiled, session = load_graph(model.proto, graph, weights, options.threads)
        interface = Interface.of(model.proto, session)
    inputs = renamed(interface.inputs, options.inputs, "input")
    outputs = renamed(interface.outputs, options.outputs, "output")
    part = PackagePart(
        compiled,
        tuple(weights),
        interface,
        {k: prefix + v for k, v in inputs.items()},
        {k: prefix + v for k, v in outputs.items()},
        prefix,
    )
    named = {part.outputs[name]: found for name, found in labels.items()}
    return _Loaded(model, part, session, named)


class _Trial:
    """A package that is loaded as a device would load it."""

    def __init__(
        self, package: Package, sessions: dict[str, OnnxSession], threads: int
    ) -> None:
        self._executor = Executor(
            package.executable, package.metadata, threads=threads, sessions=sessions
        )
        self._executor.run((LOAD,), WeightStreams(package.weights))

    def run(self, part: PackagePart, limit: TimeLimit) -> Run:
        """Return a function that runs the main program, with the graph's own names."""

        def run(feed: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
            streams = _TensorStreams(
                {input_handle(part.inputs[name]): a for name, a in feed.items()}
            )
            self._executor.run((MAIN,), streams, limit.options)
            return {
                name: streams.outputs[output_handle(public)]
                for name, public in part.outputs.items()
            }

        return run

    def __enter__(self) -> _Trial:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.close()


class _TensorStreams:
    """Streams over arrays."""

    def __init__(self, inputs: dict[str, npt.NDArray[Any]]) -> None:
        self.read = inputs.__getitem__
        self.outputs: dict[str, npt.NDArray[Any]] = {}
        self.write = self.outputs.__setitem__

    def output_memory(
        self, handle: str, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        return None


def _write(
    package: Package, target: Path, decision: BatchDecision, progress: Progress
) -> CompileReport:
    try:
        package.write(target, lambda done: progress("writing", 0.8 + 0.2 * done))
    except PopefError as error:
        raise InvalidModel(f"cannot write the model: {error}") from None
    progress("done", 1.0)
    anchors = [a for a in package.metadata.anchors if MAIN in a.programs]
    report = CompileReport(
        target,
        _reports(anchors, TensorType.INPUT),
        _reports(anchors, TensorType.OUTPUT),
        decision,
        len(package.weights),
        sum(weight.nbytes for weight in package.weights.values()),
        target.stat().st_size,
    )
    _log.info("%s", report)
    return report


def _reports(anchors: Sequence[Any], kind: TensorType) -> tuple[TensorReport, ...]:
    return tuple(TensorReport(a.name, a.tensor_info) for a in anchors if a.type is kind)


def _notes(proto: Any, options: CompileOptions) -> list[Option]:
    """Return the options that describe the source and hold the user's metadata."""
    made = " ".join(filter(None, (proto.producer_name, proto.producer_version)))
    description = options.description or proto.doc_string or proto.graph.doc_string
    notes = [
        Option("popgate.source_producer", made),
        Option("popgate.description", description),
        *(Option(f"onnx.{entry.key}", entry.value) for entry in proto.metadata_props),
    ]
    kept = [n for n in notes if n.value and len(n.value) <= _MAX_OPTION]
    return [*kept, *_user_notes(options)]


def _labels(labels: Labels) -> list[Option]:
    """Return the names of classes, for showing results."""
    notes = (Option(OPTION_LABELS + k, json.dumps(v)) for k, v in labels.items())
    return [note for note in notes if len(note.value) <= _MAX_OPTION]


def _user_notes(options: CompileOptions) -> list[Option]:
    return [Option(f"user.{k}", v) for k, v in options.user_metadata.items()]


def _silent(stage: str, done: float) -> None:
    """Ignore the progress."""
