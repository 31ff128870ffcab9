"""Random programs: views with writes, calls, loops, conditionals, streams."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import popxl
from popxl import ops

SHAPES = ((4,), (2, 3), (3, 2), (2, 2), (1, 4), (6,), ())
TRANSFERS = 3


@dataclass
class Program:
    """A random program over int32, all in sequence."""

    seed: int
    ir: popxl.Ir = field(default_factory=popxl.Ir)

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.ir.num_host_transfers = TRANSFERS
        with self.ir.main_graph, popxl.in_sequence():
            self.loads = [popxl.h2d_stream(s, popxl.int32, "in") for s in SHAPES[:2]]
            self.stores = [popxl.d2h_stream(s, popxl.int32, "out") for s in SHAPES[:2]]
            self.variables = [
                popxl.variable(
                    np.array(
                        [self.draw.randint(-5, 5) for _ in range(int(np.prod(shape)))],
                        np.int32,
                    ).reshape(shape),
                    name=f"w{n}",
                )
                for n, shape in enumerate(SHAPES)
            ]
            self._body(list(self.variables), self.draw.randint(3, 14), 0)

    def inputs(self, number: int) -> dict[Any, Any]:
        """Data for the streams that are loaded."""
        rng = np.random.default_rng(self.seed + number)
        return {
            stream: rng.integers(-5, 5, (TRANSFERS, *stream.shape)).astype(np.int32)
            for stream in self.loads
            if stream in self.ir.get_all_h2d_streams()
        }

    def _body(self, pool: list[Any], count: int, depth: int) -> list[Any]:
        for _ in range(count):
            kinds: list[Any] = [
                self._pure,
                self._write,
                self._write,
                self._view,
                self._view,
            ]
            kinds += [self._stream]
            if depth < 3:
                kinds += [self._call, self._loop, self._conditional]
            self.draw.choice(kinds)(pool, depth)
        return pool

    def _pick(self, pool: list[Any], shape: Any = None) -> Any:
        fits = [t for t in pool if shape is None or t.shape == shape]
        if fits:
            # What was made last is more likely to be a view of something.
            return self.draw.choice(fits[-4:] if self.draw.random() < 0.5 else fits)
        return popxl.constant(self.draw.randint(-3, 3) * np.ones(shape, np.int32))

    def _pure(self, pool: list[Any], _: int) -> None:
        t = self._pick(pool)
        other = self._pick(pool, t.shape)
        made = self.draw.choice([ops.add, ops.sub, ops.maximum])(t, other)
        pool.append(self.draw.choice([ops.relu, ops.negate, ops.identity])(made))

    def _write(self, pool: list[Any], _: int) -> None:
        t = self._pick(pool)
        other = self._pick(pool, t.shape)
        match self.draw.randrange(4):
            case 0:
                pool.append(ops.add_(t, other))
            case 1:
                pool.append(ops.relu_(t))
            case 2:
                pool.append(ops.var_updates.copy_var_update_(t, other))
            case _:
                pool.append(ops.scaled_add_(t, other, 2, -1))

    def _view(self, pool: list[Any], _: int) -> None:
        t = self._pick(pool)
        if t.rank == 0:
            pool.append(ops.reshape_(t, (1,)))
            return
        match self.draw.randrange(4):
            case 0:
                pool.append(ops.transpose_(t))
            case 1:
                pool.append(ops.flatten_(t))
            case 2:
                axis = self.draw.randrange(t.rank)
                start = self.draw.randrange(t.shape[axis])
                if self.draw.random() < 0.3:
                    pool.append(ops.slice_(t, [start], [None], [-1], [axis]))
                    return
                stop = self.draw.randint(start + 1, t.shape[axis])
                pool.append(ops.slice_(t, start, stop, axis=axis))
            case _:
                same = [u for u in pool if u.shape == t.shape and u is not t]
                parts = [t, self.draw.choice(same)] if same else [t]
                if t.nelms * len(parts) <= 24:
                    pool.append(ops.concat_(parts, self.draw.randrange(t.rank)))

    def _stream(self, pool: list[Any], _: int) -> None:
        n = self.draw.randrange(2)
        if self.draw.random() < 0.5:
            pool.append(ops.host_load(self.loads[n]))
        else:
            ops.host_store(self.stores[n], self._pick(pool, self.stores[n].shape))

    def _graph(
        self, pool: list[Any], depth: int, carried: int | None = None
    ) -> tuple[Any, list[Any]]:
        count = self.draw.randint(max(1, carried or 0), 4)
        given = [self._pick(pool) for _ in range(count)]
        graph = self.ir.create_empty_graph()
        with graph, popxl.in_sequence():
            inner = [
                popxl.graph_input(
                    t.shape,
                    t.dtype,
                    by_ref=n >= (carried or 0) and self.draw.random() < 0.5,
                )
                for n, t in enumerate(given)
            ]
            made = self._body(list(inner), self.draw.randint(1, 5), depth + 1)
            for n in range(carried or 0):
                popxl.graph_output(self._pick(made, inner[n].shape))
            if carried is None:
                for _ in range(self.draw.randint(0, 2)):
                    popxl.graph_output(self._pick(made))
        return graph, given

    def _call(self, pool: list[Any], depth: int) -> None:
        graph, given = self._graph(pool, depth)
        info = ops.call_with_info(graph, *given)
        if self.draw.random() < 0.3:
            info.set_parent_input_modified(given[0])
        pool += info.outputs
        if self.draw.random() < 0.3:
            pool += ops.call(graph, *given)

    def _loop(self, pool: list[Any], depth: int) -> None:
        carried = self.draw.randint(0, 2)
        graph, given = self._graph(pool, depth, carried)
        pool += ops.repeat(graph, self.draw.randint(0, 3), *given)

    def _conditional(self, pool: list[Any], depth: int) -> None:
        zero = popxl.constant(np.zeros((), np.int32))
        condition = ops.greater(self._pick(pool, ()), zero)
        branches = []
        for _ in range(2):
            given = [self._pick(pool)]
            graph = self.ir.create_empty_graph()
            with graph, popxl.in_sequence():
                inner = [popxl.graph_input(t.shape, t.dtype) for t in given]
                made = self._body(list(inner), self.draw.randint(1, 3), depth + 1)
                popxl.graph_output(self._pick(made, (4,)))
            branches.append((graph, given))
        (then, first), (other, second) = branches
        pool += ops.conditional(condition, then, other, first, second)
