"""Several replicas of one program: variables, streams, collectives, shards.

Covers: plugins/popxl/src/popir/replicas/lockstep.py,
    plugins/popxl/src/popir/collectives.py.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import popir
import popxl
from popxl import ops
from popxl.ops import collectives
from popxl.transforms import autodiff

Array = np.ndarray[Any, Any]
F32 = popxl.float32
FOLDS: dict[str, Any] = {
    "add": lambda x: x.sum(0),
    "mean": lambda x: x.sum(0) / len(x),
    "mul": lambda x: x.sum(0) / len(x),
    "min": lambda x: x.min(0),
    "max": lambda x: x.max(0),
    "square_add": lambda x: (x * x).sum(0),
    "and": lambda x: x.all(0),
    "or": lambda x: x.any(0),
}


def on_replicas(count: int, build: Any, data: Array, **options: Any) -> list[Array]:
    """The results of `build` on each replica, of its row of `data`."""
    ir = popxl.Ir(replication=count)
    with ir.main_graph, popxl.in_sequence():
        type_ = popxl.dtype.as_dtype(data.dtype)
        x = popxl.h2d_stream(data.shape[1:], type_)
        made = build(ir, ops.host_load(x))
        results = list(made) if isinstance(made, tuple | list) else [made]
        outs = [popxl.d2h_stream(t.shape, t.dtype) for t in results]
        for out, result in zip(outs, results, strict=True):
            ops.host_store(out, result)
    with popxl.Session(ir, "ipu_model") as session:
        found = session.run({x: data})
    return [found[out] for out in outs]


def values(count: int, *shape: int, dtype: Any = np.float32) -> Array:
    """Different numbers for each replica."""
    rows = np.random.default_rng(3).integers(-9, 9, (count, *shape))
    return rows.astype(dtype)


GROUPINGS = [(4, 1, 4), (4, 1, 2), (4, 2, 2), (8, 2, 4), (6, 3, 2), (16, 4, 4)]


@pytest.mark.parametrize(("grouping", "op"), list(product(GROUPINGS, FOLDS)))
def test_reduced_in_groups(grouping: tuple[int, int, int], op: Any) -> None:
    count, stride, size = grouping
    logical = op in ("and", "or")
    data = values(count, 2, 3, dtype=np.bool_ if logical else np.float32)

    def build(ir: Any, x: Any) -> Any:
        group = ir.replica_grouping(stride, size)
        kept = ops.identity(x)
        return (
            collectives.replicated_all_reduce(x, op, group),
            collectives.replicated_all_reduce_(kept, op, group),
            kept,
            collectives.replicated_reduce_scatter(x, op, group),
        )

    first, second, kept, parts = on_replicas(count, build, data)
    for members in popir.strided(count, stride, size).members:
        expected = FOLDS[op](data[members])
        flat = np.append(expected, np.zeros(size, expected.dtype))
        share = -(-expected.size // size)
        for rank, replica in enumerate(members):
            for found in (first, second, kept):
                np.testing.assert_allclose(found[replica], expected, rtol=1e-6)
            at = flat[rank * share : (rank + 1) * share]
            np.testing.assert_allclose(parts[replica][: len(at)], at, rtol=1e-6)
            assert not parts[replica][len(at) :].any()


def test_integers_and_half_are_reduced_in_their_type() -> None:
    whole = np.array([[-5], [2]], np.int32)
    mean = lambda _, x: collectives.replicated_all_reduce(x, "mean")  # noqa: E731
    assert on_replicas(2, mean, whole)[0].tolist() == [[-1], [-1]]
    half = np.array([[2048], [1], [1], [1]], np.float16)
    add = lambda _, x: collectives.replicated_all_reduce(x)  # noqa: E731
    assert on_replicas(4, add, half)[0].tolist() == [[2052]] * 4, "rounded once"


@pytest.mark.parametrize("grouping", GROUPINGS)
def test_gathered_and_cut(grouping: tuple[int, int, int]) -> None:
    count, stride, size = grouping
    data = values(count, 5, 2 * size)

    def build(ir: Any, x: Any) -> Any:
        group = ir.replica_grouping(stride, size)
        shard = collectives.replica_sharded_slice(x, group)
        return (
            collectives.replicated_all_gather(x, 0, group),
            collectives.replicated_all_gather(x, 1, group, "concat"),
            collectives.replicated_all_gather(x, 0, group, "new_axis"),
            collectives.replicated_slice(x, 1, group),
            collectives.replicated_all_gather(shard, 0, group),
        )

    rows, columns, new, cut, whole = on_replicas(count, build, data)
    for members in popir.strided(count, stride, size).members:
        own = data[members]
        flat = [np.append(x.reshape(-1), np.zeros(size)) for x in own]
        share = -(-own[0].size // size)
        parts = [f[n * share : (n + 1) * share] for n, f in enumerate(flat)]
        joined = np.concatenate(parts)[: own[0].size].reshape(own[0].shape)
        for rank, r in enumerate(members):
            np.testing.assert_array_equal(rows[r], np.concatenate(own, 0))
            np.testing.assert_array_equal(columns[r], np.concatenate(own, 1))
            np.testing.assert_array_equal(new[r], own)
            np.testing.assert_array_equal(cut[r], np.split(data[r], size, 1)[rank])
            np.testing.assert_array_equal(whole[r], joined)


def gradient_of(make: Any) -> Any:
    """Build the gradient of the sum of what `make` gives, weighted by the results."""

    def build(ir: Any, x: Any) -> Any:
        graph = ir.create_graph(make, x)
        call = ops.call_with_info(graph, x)
        info: Any = autodiff(graph)
        return ops.call(info.graph, *call.outputs, inputs_dict=info.inputs_dict(call))

    return build


def test_gradients() -> None:
    data = values(4, 4, 5)
    total = data.sum(0)
    everywhere = np.broadcast_to(total * 4, data.shape)
    found = on_replicas(4, gradient_of(collectives.replicated_all_reduce), data)[0]
    np.testing.assert_array_equal(found, everywhere)
    for make in (
        collectives.replicated_all_gather,
        lambda x: collectives.replicated_all_gather(x, 1),
        lambda x: collectives.replicated_all_gather(x, 0, None, "new_axis"),
    ):
        np.testing.assert_array_equal(on_replicas(4, gradient_of(make), data)[0], data)
    rows = np.stack([data[r, r] for r in range(4)])
    found = on_replicas(4, gradient_of(collectives.replicated_slice), data)[0]
    np.testing.assert_array_equal(found, np.broadcast_to(rows, data.shape))
    found = on_replicas(4, gradient_of(collectives.replica_sharded_slice), data)[0]
    np.testing.assert_array_equal(found, np.broadcast_to(rows, data.shape))
    gathered = lambda x: collectives.replicated_all_gather(  # noqa: E731
        collectives.replica_sharded_slice(x)
    )
    found = on_replicas(4, gradient_of(gathered), data[:, :3])[0]
    flat = data[:, :3].reshape(4, -1)
    own = np.concatenate([flat[r, 4 * r : 4 * r + 4] for r in range(4)])
    np.testing.assert_array_equal(found, np.broadcast_to(own.reshape(3, 5), (4, 3, 5)))


def test_in_loops_and_called_graphs() -> None:
    data = values(2, 3)

    def build(ir: Any, x: Any) -> Any:
        graph = ir.create_graph(lambda t: collectives.replicated_all_reduce(t), x)
        made = ops.call(graph, x)
        return ops.repeat(graph, 3, made)

    found = on_replicas(2, build, data)[0]
    np.testing.assert_array_equal(found, np.stack([data.sum(0) * 8] * 2))


def branching(count: int, stride: int, size: int, flags: list[bool]) -> Array:
    """A collective in a branch that the replicas with a flag take."""
    ir = popxl.Ir(replication=count)
    with ir.main_graph, popxl.in_sequence():
        flag = popxl.h2d_stream((), popxl.bool)
        out = popxl.d2h_stream((2,), F32)
        x = popxl.constant(np.ones(2, np.float32))
        group = ir.replica_grouping(stride, size)
        reduce = lambda t: collectives.replicated_all_reduce(t, "add", group)  # noqa: E731
        graph = ir.create_graph(reduce, x)
        other = ir.create_graph(lambda t: t * 10, x)
        chosen = ops.conditional(ops.host_load(flag), graph, other, [x], [x])
        ops.host_store(out, chosen[0])
    with popxl.Session(ir, "ipu_model") as session:
        found: Array = session.run({flag: np.array(flags)})[out]
        return found


def test_a_branch_with_a_collective_is_taken_by_whole_groups() -> None:
    found = branching(4, 1, 2, [True, True, False, False])
    assert found[:, 0].tolist() == [2, 2, 10, 10]
    with pytest.raises(popir.RunError, match=r"replicated_all_reduce.*\[1\] do not"):
        branching(4, 1, 2, [True, False, False, False])


def test_streams_have_an_axis_of_replicas() -> None:
    for count, transfers in product((1, 2), (1, 3)):
        ir = popxl.Ir(replication=count)
        ir.num_host_transfers = transfers
        with ir.main_graph, popxl.in_sequence():
            x, y = popxl.h2d_stream((2,), F32), popxl.d2h_stream((2,), F32)
            one, two = popxl.h2d_stream((), F32), popxl.d2h_stream((1,), F32)
            total = popxl.variable(np.zeros(2, np.float32))

            bound = ir.create_empty_graph("step")
            with bound, popxl.in_sequence():
                sum_ = popxl.graph_input((2,), F32, "sum", by_ref=True)
                ops.add_(sum_, ops.host_load(x))
                ops.host_store(y, sum_ * 1.0)
                ops.host_store(two, ops.host_load(one).reshape((1,)))
            ops.repeat(bound, transfers, total)
        lead = tuple(n for n in (transfers, count) if n > 1)
        data = np.arange(transfers * count * 2, dtype=np.float32)
        ones = np.arange(transfers * count, dtype=np.float32)
        with popxl.Session(ir, "ipu_model") as session:
            assert session.create_host_outputs()[y].shape == (*lead, 2)
            given = {x: data.reshape(*lead, 2), one: ones.reshape(lead)}
            found = session.run(given)
            full = data.reshape(transfers, count, 2)
            np.testing.assert_array_equal(found[y].reshape(full.shape), full.cumsum(0))
            assert found[two].shape == (*lead, 1)
            assert found[two].reshape(-1).tolist() == ones.tolist()
            extra = np.ones((*lead, 1, 2), np.float32)
            with pytest.raises(ValueError, match=r"Shape mismatch|dimension"):
                session.run({x: extra, one: ones.reshape(lead)})
            if count > 1:
                wrong = data.reshape(*lead, 2)[..., :1, :]
                with pytest.raises(ValueError, match="replicas"):
                    session.run({x: wrong, one: ones.reshape(lead)})


@pytest.mark.parametrize("mode", ["one_per_group", "all_replicas"])
@pytest.mark.parametrize("assignment", [[0, 1, 0, 1], [0, 1, 1, 0], [0, 0, 0, 0]])
@pytest.mark.parametrize("shape", [(3,), ()])
def test_grouped_variables(
    mode: Any, assignment: list[int], shape: tuple[int, ...]
) -> None:
    ir = popxl.Ir(replication=4)
    groups = max(assignment) + 1
    start = values(groups, *shape)
    with ir.main_graph, popxl.in_sequence():
        group = ir.replica_grouping_from_assignments(assignment)
        data = start if groups > 1 else start[0]
        v = popxl.variable(data, replica_grouping=group, retrieval_mode=mode)
        assert v.shape == shape
        assert v.shape_on_host == data.shape
        assert v.replica_grouping == group
        assert v.retrieval_mode == mode
        x, y = popxl.h2d_stream(shape, F32), popxl.d2h_stream(shape, F32)
        ops.add_(v, ops.host_load(x))
        ops.host_store(y, v * 1.0)
    more = values(4, *shape)
    each = start[assignment] + more
    with popxl.Session(ir, "ipu_model") as session:
        assert np.array_equal(session.run({x: more})[y], each)
        found = session.get_tensor_data(v)
        firsts = [assignment.index(g) for g in range(groups)]
        if mode == "all_replicas":
            assert np.array_equal(found, each)
            with pytest.raises(NotImplementedError):
                session.write_variable_data(v, data)
            return
        assert np.array_equal(found.reshape(start.shape), each[firsts])
        with pytest.raises(ValueError, match="has shape"):
            session.write_variable_data(v, np.zeros((9, *shape), np.float32))
        session.write_variable_data(v, np.zeros_like(data))
        assert np.array_equal(session.run({x: more})[y], more)


def test_a_grouped_variable_needs_an_axis_of_groups() -> None:
    ir = popxl.Ir(replication=4)
    with ir.main_graph:
        pairs = ir.replica_grouping(group_size=2)
        with pytest.raises(ValueError, match="number of groups"):
            popxl.variable(np.zeros((4, 3)), replica_grouping=pairs)
        v = popxl.variable(np.zeros((2, 3)), replica_grouping=pairs)
        v + v
    ir.replication_factor = 2
    with pytest.raises(popir.IrError, match="groups of 4 replicas, but the Ir has 2"):
        popxl.Session(ir, "ipu_model")


def test_a_mapped_file_with_a_grouping_without_a_stride_is_copied(
    tmp_path: Path, capfd: Any
) -> None:
    ir = popxl.Ir(replication=4)
    data = np.memmap(tmp_path / "v", np.float32, "w+", shape=(2, 3))
    with ir.main_graph:
        group = ir.replica_grouping_from_assignments([0, 1, 1, 0])
        v = popxl.variable(data, replica_grouping=group)
    assert v._memmap_arr is None
    assert "non-const replica grouping" in capfd.readouterr().err


def test_rows_of_each_replica() -> None:
    data = values(4, 2)
    start = values(2, 2)

    def build(ir: Any, x: Any) -> Any:
        buffer = popxl.remote_buffer((2,), F32, 3)
        pairs = ir.replica_grouping(group_size=2)
        popxl.remote_variable(start, buffer, 1, replica_grouping=pairs)
        row = ops.remote_load(buffer, 1)
        ops.remote_store(buffer, 1, row + x)
        ops.remote_store(buffer, 2, x)
        return ops.remote_load(buffer, 1), ops.remote_load(buffer, 2)

    first, second = on_replicas(4, build, data)
    assert np.array_equal(first, start[[0, 0, 1, 1]] + data)
    assert np.array_equal(second, data)


@pytest.mark.parametrize(
    ("count", "group", "over", "size"),
    [(2, None, None, 5), (4, (1, 2), None, 6), (4, (2, 2), None, 5), (4, None, 2, 3)],
)
def test_an_update_of_shards_is_that_of_the_whole(
    count: int, group: Any, over: Any, size: int
) -> None:
    ir = popxl.Ir(replication=count)
    groups = popir.strided(count, *(group or (1, None)))
    start = values(groups.num_groups, size)
    if groups.num_groups == 1:
        start = start[0]
    with ir.main_graph, popxl.in_sequence():
        among = ir.replica_grouping(*group) if group else None
        handle, shard = popxl.replica_sharded_variable(
            start, name="w", replica_grouping=among, shard_over=over
        )
        assert handle.shape == (size,)
        assert shard.meta_shape == (size,)
        assert shard.shape == (-(-size // (over or groups.size)),)
        assert shard.name == "w_rts_remote_loaded"
        x = ops.init((size,), F32) + 1
        inner = ir.replica_grouping(1, over) if over else among
        gradient = collectives.replica_sharded_slice(x, inner)
        out = popxl.d2h_stream((size,), F32)
        ops.host_store(out, collectives.replicated_all_gather(shard, 0, inner))
        ops.scaled_add_(shard, gradient, 1, -0.5)
    with popxl.Session(ir, "ipu_model") as session:
        expected = start if groups.num_groups > 1 else start[np.newaxis]
        for step in range(3):
            found = session.run()[out]
            assert np.array_equal(found, expected[list(groups.assignment)] - step / 2)
        assert np.array_equal(session.get_tensor_data(handle), start - 1.5)
        session.write_variable_data(handle, np.zeros_like(start))
        assert not session.run()[out].any()
    assert np.array_equal(session.get_tensor_data(handle), np.zeros_like(start) - 0.5)


@pytest.mark.parametrize("is_remote", [False, True])
def test_parts_of_a_group_hold_a_small_variable_whole(is_remote: bool) -> None:
    start = np.array([1, 2], np.float32)
    ir = popxl.Ir(replication=4)
    with ir.main_graph, popxl.in_sequence():
        if is_remote:
            buffer = popxl.replica_sharded_buffer((2,), F32, shard_over=2)
            handle = popxl.remote_replica_sharded_variable(start, buffer)
            shard = ops.remote_load(buffer, 0)
        else:
            handle, shard = popxl.replica_sharded_variable(start, shard_over=2)
        ops.add_(shard, shard)
        out = popxl.d2h_stream((1,), F32)
        ops.host_store(out, shard)
        if is_remote:
            ops.remote_store(buffer, 0, shard)
    with popxl.Session(ir, "ipu_model") as session:
        assert session.run()[out].reshape(-1).tolist() == [2, 4, 2, 4]
        assert session.get_tensor_data(handle).tolist() == [2, 4]


def test_what_a_sharded_variable_needs() -> None:
    ir = popxl.Ir(replication=4)
    with ir.main_graph:
        buffer = popxl.replica_sharded_buffer((6,), F32, entries=2)
        assert (buffer.tensor_shape, buffer.meta_shape) == ((2,), (6,))
        by_hand = popxl.remote_buffer((2,), F32, 1)
        popxl.remote_replica_sharded_variable(np.zeros(6, np.float32), by_hand)
        assert by_hand.meta_shape == (6,)
        with pytest.raises(ValueError, match="does not match"):
            popxl.remote_replica_sharded_variable(np.zeros(5, np.float32), buffer)
        for over in (3, 8):
            with pytest.raises(ValueError, match=r"[Ss]hard"):
                popxl.replica_sharded_buffer((6,), F32, shard_over=over)
    alone = popxl.Ir()
    with alone.main_graph, pytest.raises(ValueError, match="above 1"):
        popxl.replica_sharded_variable(np.zeros(6, np.float32))


def test_a_shard_may_be_reshaped_after_it_was_gathered() -> None:
    data = values(2, 2, 3)

    def build(ir: Any, x: Any) -> Any:
        shard = collectives.replica_sharded_slice(x)
        whole = collectives.replicated_all_gather(shard)
        ops.add_(whole.reshape_((3, 2)), popxl.constant(1.0))
        return whole

    found = on_replicas(2, build, data)[0]
    flat = np.concatenate([data[0].reshape(-1)[:3], data[1].reshape(-1)[3:]])
    assert np.array_equal(found, np.stack([flat.reshape(2, 3) + 1] * 2))


def test_many_replicas_and_large_graphs_do_not_depend_on_threads() -> None:
    data = np.random.default_rng(1).standard_normal((16, 64, 256), np.float32)

    def build(ir: Any, x: Any) -> Any:
        made = ops.matmul(x, ops.transpose(x))
        return collectives.replicated_all_reduce(made, "mean")

    found = [on_replicas(16, build, data)[0] for _ in range(2)]
    assert np.array_equal(found[0], found[1])
    expected = np.mean(data @ data.transpose(0, 2, 1), 0)
    np.testing.assert_allclose(found[0][3], expected, rtol=1e-3, atol=1e-3)
