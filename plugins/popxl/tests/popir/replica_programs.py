"""Random programs on several replicas, with all collectives, rows and shards.

    python -m plugins.popxl.tests.popir.replica_programs --count 3000 --seed 0

compares each with the interpreter, bit for bit, and names the seeds that differ.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from dataclasses import dataclass
from typing import Any

import numpy as np

import popxl
from plugins.popxl.tests.popir.oracle import Oracles
from plugins.popxl.tests.popir.programs import SHAPES, TRANSFERS, Program
from popxl import ops
from popxl.ops import collectives

ROWS = 3
#: Elements of the largest tensor that a collective makes.
MOST = 64


@dataclass
class ReplicaProgram(Program):
    """A random program over int32, on 1 to 8 replicas if `replicas` is 0."""

    replicas: int = 0
    is_for_file: bool = False
    """No stream is in a branch: a file with several replicas cannot say that."""

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        if not self.replicas:
            self.replicas = int(rng.integers(1, 9))
            self.ir.replication_factor = self.replicas
        else:
            # The Ir has them, here or in several instances.
            assert self.ir.replication_factor == self.replicas
        self._branches = 0
        with self.ir.main_graph:
            self.groupings = self._all_groupings()
            self.buffers = [
                popxl.remote_buffer(shape, popxl.int32, ROWS) for shape in SHAPES[:2]
            ]
            groups = self.ir.replica_grouping(group_size=1)
            offsets = rng.integers(0, ROWS, (self.replicas,) * (self.replicas > 1))
            self.offset = popxl.variable(
                offsets.astype(np.uint32), name="offset", replica_grouping=groups
            )
            self.special = [self._grouped(rng, n) for n in range(2)]
            self.shards = self._shards(rng)
        super().__post_init__()

    def _all_groupings(self) -> list[Any]:
        count = self.replicas
        return [
            self.ir.replica_grouping(stride, size)
            for stride in range(1, count + 1)
            for size in range(1, count + 1)
            if count % stride == 0
            and count % ((1 if size == 1 else stride) * size) == 0
        ]

    def _grouped(self, rng: Any, number: int) -> Any:
        """A variable that differs by groups, of any assignment."""
        count = self.replicas
        groups = self.groupings[int(rng.integers(len(self.groupings)))]
        if rng.random() < 0.5:
            sizes = [n for n in range(1, count + 1) if count % n == 0]
            size = sizes[int(rng.integers(len(sizes)))]
            marks = rng.permutation(np.repeat(np.arange(count // size), size))
            order = {mark: n for n, mark in enumerate(dict.fromkeys(marks.tolist()))}
            groups = self.ir.replica_grouping_from_assignments(
                [order[mark] for mark in marks.tolist()]
            )
        shape = (*SHAPES[:4], ())[int(rng.integers(5))]
        lead = (groups.num_groups,) * (groups.num_groups > 1)
        data = rng.integers(-5, 5, (*lead, *shape)).astype(np.int32)
        all_of_them = rng.random() < 0.3
        return popxl.variable(
            data,
            name=f"grouped{number}",
            replica_grouping=groups,
            retrieval_mode="all_replicas" if all_of_them else "one_per_group",
        )

    def _shards(self, rng: Any) -> list[Any]:
        """Handle, shard and grouping of a sharded variable, if there can be one."""
        groupings = [g for g in self.groupings if g.group_size > 1]
        if not groupings:
            return []
        groups = groupings[int(rng.integers(len(groupings)))]
        lead = (groups.num_groups,) * (groups.num_groups > 1)
        data = rng.integers(-5, 5, (*lead, 2, 3)).astype(np.int32)
        handle, shard = popxl.replica_sharded_variable(
            data, name="sharded", replica_grouping=groups
        )
        return [(handle, shard, groups)]

    def inputs(self, number: int) -> dict[Any, Any]:
        """Data for the streams that are loaded."""
        rng = np.random.default_rng(self.seed + number)
        lead = (TRANSFERS, *((self.replicas,) if self.replicas > 1 else ()))
        return {
            stream: rng.integers(-5, 5, (*lead, *stream.shape)).astype(np.int32)
            for stream in self.loads
            if stream in self.ir.get_all_h2d_streams()
        }

    def _body(self, pool: list[Any], count: int, depth: int) -> list[Any]:
        if depth == 0:
            pool += self.special
        for _ in range(count):
            super()._body(pool, 1, depth)
            if self._branches == 0 and self.draw.random() < 0.6:
                kinds = (self._reduce, self._gather, self._scatter, self._cut)
                self.draw.choice(kinds)(pool)
            if self.draw.random() < 0.3:
                self._remote(pool)
            if depth == 0 and self.shards and self.draw.random() < 0.3:
                self._use_shard(pool)
        return pool

    def _conditional(self, pool: list[Any], depth: int) -> None:
        # Members may take different branches, which must not lead to collectives.
        self._branches += 1
        super()._conditional(pool, depth)
        self._branches -= 1

    def _stream(self, pool: list[Any], depth: int) -> None:
        if not (self.is_for_file and self._branches):
            super()._stream(pool, depth)

    def _group(self) -> Any:
        return self.draw.choice(self.groupings)

    def _reduce(self, pool: list[Any]) -> None:
        t, group = self._pick(pool), self._group()
        if self.draw.random() < 0.2:
            op: Any = self.draw.choice(["and", "or"])
            zero = popxl.constant(np.zeros(t.shape, np.int32))
            mask = collectives.replicated_all_reduce(ops.greater(t, zero), op, group)
            pool.append(ops.where(mask, t, ops.negate(t)))
            return
        op = self.draw.choice(["add", "mean", "mul", "min", "max", "square_add"])
        kinds = (collectives.replicated_all_reduce, collectives.replicated_all_reduce_)
        t = ops.maximum(ops.negate(self._small(t)), self._small(t))
        pool.append(self.draw.choice(kinds)(t, op, group))

    def _small(self, t: Any) -> Any:
        """A new tensor from `t` whose squares do not overflow in a sum."""
        limit = popxl.constant(np.full(t.shape, 1000, np.int32))
        return ops.negate(ops.maximum(ops.negate(limit), ops.negate(t)))

    def _gather(self, pool: list[Any]) -> None:
        t, group = self._pick(pool), self._group()
        if t.nelms * group.group_size > MOST:
            return
        kind: Any = self.draw.choice(["concat", "new_axis"])
        axis = self.draw.randrange(t.rank) if kind == "concat" and t.rank else 0
        pool.append(collectives.replicated_all_gather(t, axis, group, kind))

    def _scatter(self, pool: list[Any]) -> None:
        t, group = self._pick(pool), self._group()
        op: Any = self.draw.choice(["add", "min", "max", "mean"])
        made = collectives.replicated_reduce_scatter(t, op, group, True)
        pool.append(ops.identity(made))
        pool.append(collectives.replicated_all_gather(made, 0, group))

    def _cut(self, pool: list[Any]) -> None:
        t, group = self._pick(pool), self._group()
        axes = [n for n, size in enumerate(t.shape) if size % group.group_size == 0]
        if axes:
            made = collectives.replicated_slice(t, self.draw.choice(axes), group)
            pool.append(made)
        shard = collectives.replica_sharded_slice(t, group)
        pool.append(collectives.replicated_all_gather(shard, 0, group))

    def _remote(self, pool: list[Any]) -> None:
        buffer = self.draw.choice(self.buffers)
        in_main = popxl.gcg() == self.ir.main_graph
        computed = in_main and self.draw.random() < 0.4
        offset: Any = self.offset if computed else self.draw.randrange(ROWS)
        match self.draw.randrange(3):
            case 0:
                ops.remote_store(buffer, offset, self._pick(pool, buffer.tensor_shape))
            case 1:
                pool.append(ops.remote_load(buffer, offset))
            case _:
                t = self._pick(pool, buffer.tensor_shape)
                pool.append(ops.remote_load_(buffer, offset, t))

    def _use_shard(self, pool: list[Any]) -> None:
        _, shard, group = self.shards[0]
        whole = collectives.replicated_all_gather(shard, 0, group)
        pool.append(ops.identity(whole))
        other = self._pick(pool, (2, 3))
        part = collectives.replicated_reduce_scatter(other, "max", group, True)
        ops.add_(shard, part)


def expected_of(
    stored: list[dict[Any, list[Any]]], stream: Any, like: Any, count: int
) -> Any:
    """The array of a stream that the interpreters stored to, in the order of runs."""
    rows = np.zeros((TRANSFERS, count, *stream.shape), like.dtype)
    for replica, each in enumerate(stored):
        for at, value in enumerate(each.get(stream._tensor._below, [])):
            rows[at % TRANSFERS, replica] = value
    return rows.reshape(like.shape)


def check(seed: int) -> None:
    """Run a program twice, and compare all it does with the interpreter."""
    program = ReplicaProgram(seed)
    count = program.replicas
    oracles = Oracles(program.ir._below, count)
    session = popxl.Session(program.ir, "ipu_model")
    with session:
        for number in range(2):
            inputs = program.inputs(number)
            outputs = session.create_host_outputs()
            for array in outputs.values():
                array[...] = 0
            session.run_with_outputs(inputs, outputs)
            given = {
                s._tensor._below: a.reshape(TRANSFERS, count, *s.shape)
                for s, a in inputs.items()
            }
            stored = oracles.run(given)
            for stream, array in outputs.items():
                expected = expected_of(stored, stream, array, count)
                np.testing.assert_array_equal(array, expected, f"{seed} {stream}")
        for variable in (*program.variables, *program.special):
            found = session.get_tensor_data(variable)
            own = [each.value(variable._below) for each in oracles.replicas]
            groups = variable.replica_grouping.assignment
            first = [groups.index(g) for g in range(max(groups) + 1)]
            if variable.retrieval_mode == "all_replicas" and len(first) < count:
                first = list(range(count))
            lead = found.shape[: found.ndim - variable.rank]
            wanted = np.stack([own[r] for r in first])
            wanted = wanted.reshape((*lead, *variable.shape))
            np.testing.assert_array_equal(found, wanted, f"{seed} {variable}")
        for handle, shard, groups in program.shards:
            found = session.get_tensor_data(handle)
            own = [each.value(shard._below) for each in oracles.replicas]
            parts = [
                np.concatenate(
                    [own[r] for r, g in enumerate(groups.assignment) if g == n]
                )
                for n in range(groups.num_groups)
            ]
            flat = found.reshape(groups.num_groups, -1)
            cut = np.stack(parts)[:, : flat.shape[1]]
            np.testing.assert_array_equal(flat, cut, f"{seed} {handle}")


def main() -> None:
    """Compare many programs; exit with 1 if one differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    wrong = []
    for seed in range(given.seed, given.seed + given.count):
        try:
            check(seed)
        except Exception:
            traceback.print_exc()
            wrong.append(seed)
    sys.stdout.write(f"{given.count} programs, {len(wrong)} wrong: {wrong[:20]}\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
