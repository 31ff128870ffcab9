"""Load a model in a device process, from its bytes to replicas that can run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.errors import Cancelled, InvalidModel
from engine.model.anchors import MainAnchors, main_anchors
from engine.model.batch_plan import BatchPlan
from engine.model.model_file import receive_model
from engine.programs.executable import Executable
from engine.programs.executor import make_executor
from engine.programs.model_data import ModelData, ProgramStreams
from engine.programs.save_programs import SavePrograms
from engine.programs.time_limit import TimeLimit
from engine.programs.transfers import is_conditional, stream_transfers
from engine.transport.device_messages import Load
from engine.transport.tensor_pack import unpack_tensors
from engine.worker.batch import AnchorTable
from engine.worker.batching_policy import BatchingPolicy
from engine.worker.python_kind import PythonKind, Running
from engine.worker.ragged import RaggedReplica
from engine.worker.regrouping import RegroupingReplica
from engine.worker.replica import Replica, ReplicaParts
from engine.worker.results import Waiter
from popef_io import Anchor, Model


@dataclass(frozen=True, slots=True)
class LoadedReplica:
    """A replica that accepts requests, and the save programs over the same
    variables.
    """

    replica: Replica
    save: SavePrograms


def load_replicas(
    numbers: Sequence[int],
    message: Load,
    fds: Sequence[int],
    wait_room: Waiter,
    running: Running = lambda: None,
    python: PythonKind | None = None,
) -> list[LoadedReplica]:
    """Carry out a `Load` message: map the files, load, run the load programs.

    Makes one replica for each of `numbers`. They share the graphs and the weights. Each
    has its own variables and positions in feeds, which begin with the same values.
    `python` runs Python models.
    """
    names = message.sources
    model = receive_model(names, fds, message.executable)
    frozen = {}
    if message.frozen is not None:
        tensors = unpack_tensors(message.frozen, fds[len(names)])
        frozen = {name: tensor.numpy() for name, tensor in tensors.items()}
    data = ModelData(model, frozen)
    if message.python is not None:
        assert python is not None
        threads = message.threads
        executor = python.executor(model, message.python, threads, fds, running)
    else:
        executor = make_executor(
            model, message.threads, message.providers, message.check_package_hash
        )
    try:
        anchors = main_anchors(model, frozen.keys())
        plan, policy = _rules(model, executor.executable, message, anchors)
        with TimeLimit(message.load_timeout, executor.new_options) as limit:
            load = model.metadata.program_flow.load
            executor.run(load, ProgramStreams(data), limit.options)
        for anchor in anchors.constants:
            data.check(anchor.handle)
        clones = [(executor.clone(), data.clone()) for _ in numbers[1:]]
    except Cancelled:
        executor.close()
        text = f"the load programs exceeded {limit.seconds:g} s"
        raise InvalidModel(text) from None
    except BaseException:
        executor.close()
        raise
    loaded = []
    for number, (runs, own) in zip(numbers, [(executor, data), *clones], strict=True):
        table = AnchorTable(anchors.inputs, anchors.outputs, own)
        main = model.metadata.program_flow.main
        parts = ReplicaParts(
            number, message.name, runs, main, table, plan, policy, wait_room
        )
        save = SavePrograms(runs, model.metadata, own)
        loaded.append(LoadedReplica(_kind(plan, policy)(parts), save))
    return loaded


def _rules(
    model: Model, executable: Executable, message: Load, anchors: MainAnchors
) -> tuple[BatchPlan, BatchingPolicy]:
    """Return the rules for turning requests into runs, from the client's plan and the
    programs.
    """
    plan = BatchPlan.from_message(message.plan)
    flow = model.metadata.program_flow
    main = flow.main
    for number in (*flow.load, *main, *flow.save):
        if number not in executable.programs:
            known = list(executable.programs)
            raise InvalidModel(
                f"there is no program {number}; the programs are {known}"
            )
    _check_transfers(stream_transfers(executable, main), plan, anchors)
    # If requests choose what runs, no two may run together.
    conditional = is_conditional(executable, main)
    if conditional and plan.ragged is not None:
        raise InvalidModel(
            "rows of different length cannot run together, because each request "
            "selects the program that runs; switch off ragged"
        )
    policy = BatchingPolicy(
        max_rows=0 if conditional else plan.max_units,
        conditional=conditional,
        delay_ns=message.delay_ns,
        preferred=message.preferred,
        same_shapes=any(_free_tail(a, plan.dim) for a in anchors.inputs),
        fill_batch_ns=message.waiting.fill_batch_ns,
        fill_run_ns=message.waiting.fill_run_ns,
        asks=message.waiting.asks,
        drops_cancelled=message.waiting.drops_cancelled,
        look_ahead=message.waiting.look_ahead,
        max_tokens=plan.ragged.tokens_on(message.providers) if plan.ragged else 0,
    )
    return plan, policy


def _kind(plan: BatchPlan, policy: BatchingPolicy) -> type[Replica]:
    """Return the kind of replica. Whether it regroups depends on whether requests are
    split or joined into runs, or run in pieces.
    """
    if plan.ragged is not None:
        return RaggedReplica
    if policy.conditional or not plan.run_units:
        return Replica
    regroups = policy.max_rows > 0 if plan.run_units > 1 else policy.look_ahead >= 0
    return RegroupingReplica if regroups else Replica


def _check_transfers(
    transfers: Mapping[str, int], plan: BatchPlan, anchors: MainAnchors
) -> None:
    """Check that the programs transfer as much as the client's plan, which it made from
    the metadata.
    """
    planned = (*plan.inputs, *plan.outputs)
    for anchor, rows in zip((*anchors.inputs, *anchors.outputs), planned, strict=True):
        count = transfers.get(anchor.handle, 1)
        if count != rows.transfers:
            raise InvalidModel(
                f"a run of the main programs transfers {anchor.name!r} {count} times; "
                f"the device_iterations of the metadata require {rows.transfers}"
            )


def _free_tail(anchor: Anchor, dim: int) -> bool:
    shape = anchor.tensor_info.shape
    return shape is None or any(d < 0 for i, d in enumerate(shape) if i != dim)
