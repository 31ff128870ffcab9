"""Programs that the tests start as instances: `python programs.py NAME ARGUMENTS`."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

import popdist
import popxl
from popir.grouping import Collective, strided
from popir.instances import connect
from popxl import ops
from popxl.ops import collectives

F32 = popxl.float32
#: How many random programs there are among `bits`.
RANDOM = 6


def say(*words: object) -> None:
    """Write a line at once: several processes write to one pipe."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def _digest(array: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:12]


def bits(replicas: str = "popdist") -> None:
    """Say, for each replica, the bits of all that collectives and shards give."""
    ir = popxl.Ir(replication=int(replicas) if replicas.isdecimal() else "popdist")
    total, local = ir.replication_factor, ir.instance_replication_factor
    first = popdist.getReplicaIndexOffset() if local < total else 0
    rng = np.random.default_rng(1)
    data = rng.normal(size=(total, 700, 5)).astype(np.float32)
    halves = ir.replica_grouping(total // 2, 2)
    pairs = ir.replica_grouping(1, 2)
    with ir.main_graph, popxl.in_sequence():
        stream = popxl.h2d_stream((700, 5), F32)
        grouped = popxl.variable(
            rng.normal(size=(total // 2, 7)).astype(np.float32), replica_grouping=halves
        )
        handle, shard = popxl.replica_sharded_variable(
            rng.normal(size=(3, 5)).astype(np.float32), F32, "sharded"
        )
        own = popxl.variable(np.zeros(2, np.float32), name="own")
        buffer = popxl.remote_buffer((700, 5), F32, 3)
        x = ops.host_load(stream)
        ops.remote_store(buffer, 1, x)
        row = ops.remote_load(buffer, 1)
        made = [
            collectives.replicated_all_reduce(row, op, group)
            for op in ("add", "mean", "max", "square_add")
            for group in (None, halves, pairs)
        ]
        half = ops.cast(x, popxl.float16)
        made.append(ops.cast(collectives.replicated_all_reduce(half), F32))
        part = collectives.replicated_reduce_scatter(x, "add", halves)
        made += [part, collectives.replicated_all_gather(part, 0, halves)]
        made.append(collectives.replicated_all_gather(x, 1, None, "concat"))
        made.append(collectives.replicated_slice(x, 0, None))
        made.append(collectives.replicated_all_gather(shard))
        ops.add_(shard, popxl.constant(np.float32(1)))
        ops.add_(grouped, ops.slice(x.flatten(), 0, 7))
        ops.add_(own, ops.slice(x.flatten(), 0, 2))
        outs = []
        for t in made:
            outs.append(popxl.d2h_stream(t.shape, t.dtype))
            ops.host_store(outs[-1], t)
    with popxl.Session(ir, "ipu_model") as session:
        mine = data[first : first + local]
        found = session.run({stream: mine if local > 1 else mine[0]})
        weights = session.get_tensors_data([grouped, handle, own])
    of_weights = _digest(np.concatenate([w.reshape(-1) for w in weights.values()]))
    for replica in range(local):
        own_rows = [found[out][replica] if local > 1 else found[out] for out in outs]
        say(first + replica, *map(_digest, own_rows), of_weights)
    for seed in range(RANDOM):
        random_program(replicas, seed)


def random_program(replicas: str, seed: int) -> None:
    """Say the bits of a random program."""
    sys.path.insert(0, str(Path(__file__).parents[5]))
    from plugins.popxl.tests.popir.programs import TRANSFERS
    from plugins.popxl.tests.popir.replica_programs import ReplicaProgram

    given = int(replicas) if replicas.isdecimal() else "popdist"
    ir = popxl.Ir(replication=given)  # type: ignore[arg-type]
    program = ReplicaProgram(seed, ir, ir.replication_factor)
    total, local = ir.replication_factor, ir.instance_replication_factor
    first = popdist.getReplicaIndexOffset() if local < total else 0
    own = slice(first, first + local)
    inputs = {
        stream: rows[:, own].reshape(
            (TRANSFERS, *((local,) * (local > 1)), *stream.shape)
        )
        for stream, rows in program.inputs(0).items()
    }
    with popxl.Session(ir, "ipu_model") as session:
        outputs = session.create_host_outputs()
        for array in outputs.values():
            array[...] = 0
        session.run_with_outputs(inputs, outputs)
        weights = [*program.variables, *program.special]
        kept = session.get_tensors_data(weights).values()
    of_weights = _digest(np.concatenate([w.reshape(-1) for w in kept]))
    for replica in range(local):
        rows = [a[:, replica] if local > 1 else a for a in outputs.values()]
        say(seed, first + replica, *sorted(map(_digest, rows)), of_weights)


def large_values(replica: int) -> Any:
    """Give a replica's values, which go in several pieces."""
    return np.random.default_rng(replica).random(2_700_001, np.float32)


def large() -> None:
    """Say the bits of two sums of large values, and of a gather."""
    instances = connect()
    this = instances.identity
    every = strided(this.replicas, 1, None)
    local = range(this.offset, this.offset + this.local_replicas)
    given = {replica: large_values(replica) for replica in local}
    reduce = Collective("reduce", "all_reduce", every, "add")
    first = instances.exchanged("first", reduce, given)
    instances.exchanged("dropped", reduce, given)
    doubled = {replica: 2 * value for replica, value in given.items()}
    second = instances.exchanged("second", reduce, doubled)
    shape = (this.replicas, *given[this.offset].shape)
    gather = Collective("concat", "all_gather", every, axis=0, shape=shape)
    third = instances.exchanged("third", gather, given)
    for replica in local:
        say(replica, *(_digest(found[replica]) for found in (first, second, third)))


def large_expected(replicas: int) -> list[str]:
    """Give the lines that `large` says in all instances together."""
    values = [large_values(replica) for replica in range(replicas)]
    total = values[0]
    for value in values[1:]:
        total = total + value
    digests = map(_digest, (total, 2 * total, np.stack(values)))
    words = " ".join(digests)
    return [f"{replica} {words}" for replica in range(replicas)]


def _reducing(name: str = "x", shape: tuple[int, ...] = (4,)) -> Any:
    ir = popxl.Ir(replication="popdist")
    with ir.main_graph, popxl.in_sequence():
        x = popxl.variable(np.ones(shape, np.float32), name=name)
        total = collectives.replicated_all_reduce(x)
        out = popxl.d2h_stream(total.shape, total.dtype)
        ops.host_store(out, total)
    return ir


def for_ever() -> None:
    """Reduce until something ends it."""
    with popxl.Session(_reducing(shape=(100_000,)), "ipu_model") as session:
        session.run()
        say("ready", popdist.getInstanceIndex(), os.getpid())
        while True:
            session.run()


def one_waits() -> None:
    """All but instance 1 wait in a collective; instance 1 waits for its input."""
    with popxl.Session(_reducing(), "ipu_model") as session:
        say("ready", popdist.getInstanceIndex(), os.getpid())
        if popdist.getInstanceIndex() == 1:
            signal_never = os.pipe()[0]
            os.read(signal_never, 1)
        session.run()


def one_fails() -> None:
    """Instance 1 raises while the others wait for it."""
    with popxl.Session(_reducing(), "ipu_model") as session:
        if popdist.getInstanceIndex() == 1:
            raise ValueError("no more data")
        session.run()


def one_ends() -> None:
    """Instance 1 ends as if all were done."""
    session = popxl.Session(_reducing(), "ipu_model", weights_to_host_on_exit=False)
    with session:
        if popdist.getInstanceIndex() == 1:
            return
        session.run()


def one_of_a_pair_ends() -> None:
    """Instance 1 ends early; the groups are pairs of instances."""
    ir = popxl.Ir(replication="popdist")
    total = ir.replication_factor
    with ir.main_graph, popxl.in_sequence():
        x = popxl.variable(np.ones(4, np.float32), name="x")
        pairs = ir.replica_grouping(total // 2, 2)
        ops.add_(x, collectives.replicated_all_reduce(x, "add", pairs))
    session = popxl.Session(ir, "ipu_model", weights_to_host_on_exit=False)
    with session:
        for _ in range(1 if popdist.getInstanceIndex() == 1 else 2):
            session.run()


def one_stays() -> None:
    """Instance 1 leaves the program while the others wait for it, and does not end."""
    with popxl.Session(_reducing(), "ipu_model") as session:
        if popdist.getInstanceIndex() == 1:
            popdist.finalizeBackend()
            os.read(os.pipe()[0], 1)
        session.run()


def others() -> None:
    """Instance 1 runs another program."""
    shape = (4,) if popdist.getInstanceIndex() == 1 else (5,)
    with popxl.Session(_reducing(shape=shape), "ipu_model") as session:
        session.run()


def branches() -> None:
    """The last replica takes no branch to the collective, if it spans instances."""
    ir = popxl.Ir(replication="popdist")
    total = ir.replication_factor
    with ir.main_graph, popxl.in_sequence():
        stream = popxl.h2d_stream((), popxl.bool)
        x = popxl.variable(1.0)
        reducing = ir.create_graph(
            lambda t: collectives.replicated_all_reduce(
                t, "add", ir.replica_grouping(total // 2, 2)
            ),
            x,
        )
        plain = ir.create_graph(lambda t: ops.identity(t), x)
        (y,) = ops.conditional(ops.host_load(stream), reducing, plain, [x], [x])
        out = popxl.d2h_stream((), F32)
        ops.host_store(out, y)
    first, local = popdist.getReplicaIndexOffset(), ir.instance_replication_factor

    def rows(values: list[bool]) -> Any:
        return np.array(values)[first : first + local].reshape((local,) * (local > 1))

    with popxl.Session(ir, "ipu_model", weights_to_host_on_exit=False) as session:
        apart = session.run({stream: rows([True, False] * (total // 2))})[out]
        say(first, *np.atleast_1d(apart).tolist())
        session.run({stream: rows([True] * (total - 1) + [False])})


def who() -> None:
    """Say what popdist says."""
    popdist.init()
    say(
        popdist.getInstanceIndex(),
        popdist.getNumInstances(),
        popdist.getNumTotalReplicas(),
        popdist.getNumLocalReplicas(),
        popdist.getReplicaIndexOffset(),
        popdist.isBackendInitialized(),
        os.environ.get("A"),
    )
    popdist.synchronize()
    sys.stderr.write(f"error line of {popdist.getInstanceIndex()}\n")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
