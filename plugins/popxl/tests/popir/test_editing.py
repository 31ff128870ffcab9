"""Changes to graphs operator by operator keep readers, sources and order right."""

from __future__ import annotations

import pytest

import popir
from popir.dtypes import FLOAT32

SPEC = popir.Spec(FLOAT32, (2,))


def graph_of_two() -> tuple[popir.IrGraph, popir.Operator, popir.Operator]:
    graph = popir.Ir().main
    x = graph.new_tensor(SPEC, "variable", "x")
    first = graph.add("Tanh", [x])
    second = graph.add("Add", [first.outputs[0], first.outputs[0]])
    return graph, first, second


def test_disconnecting_one_of_two_equal_inputs_keeps_the_reader() -> None:
    _, first, second = graph_of_two()
    (tensor,) = first.outputs
    popir.disconnect(second, 0)
    assert second in tensor.readers
    assert second.connected == [tensor]
    popir.disconnect(second, 1)
    assert second not in tensor.readers


def test_results_are_taken_away_and_given_again() -> None:
    graph, first, second = graph_of_two()
    (tensor,) = first.outputs
    popir.disconnect_output(first, 0)
    assert tensor.producer is None
    popir.connect_output(first, 0, tensor.id)
    assert tensor.producer is first
    with pytest.raises(popir.IrError, match="has a source"):
        popir.connect_output(second, 0, tensor.id)
    with pytest.raises(popir.IrError, match="no output 1"):
        popir.connect_output(second, 1, "y")
    popir.disconnect_output(second, 0)
    graph.new_tensor(popir.Spec(FLOAT32, (3,)), "result", "wrong")
    with pytest.raises(popir.IrError, match="does not fit"):
        popir.connect_output(second, 0, "wrong")


def test_erasing_passes_the_order_on() -> None:
    graph, first, second = graph_of_two()
    third = graph.add("Tanh", [graph.tensors["x"]])
    popir.run_before(first, second)
    popir.run_before(second, third)
    popir.erase(second)
    assert graph.operators == [first, third]
    assert third.after == (first,)
    with pytest.raises(popir.IrError, match="already"):
        popir.run_before(third, first)
    other, *_ = graph_of_two()
    with pytest.raises(popir.IrError, match="different graphs"):
        popir.run_before(first, other.operators[0])


def test_replacing_a_tensor_reconnects_readers_and_outputs() -> None:
    graph, first, second = graph_of_two()
    (old,) = first.outputs
    graph.outputs.append(old)
    popir.replace(old, graph.tensors["x"])
    assert [t.id for t in second.inputs] == ["x", "x"]
    assert graph.outputs == [graph.tensors["x"]]
    assert not old.readers


def test_a_copy_runs_the_same_graphs() -> None:
    graph, *_ = graph_of_two()
    called = graph.ir.new_graph()
    attributes = {"graphs": (called,), "results": []}
    call = graph.add("Call", [], [], attributes)
    copy = popir.copy_into(graph, call)
    assert list(called.callers) == [call, copy]
    popir.erase(call)
    assert list(called.callers) == [copy]


def test_isolated_tensors_go() -> None:
    graph, first, _ = graph_of_two()
    graph.new_tensor(SPEC, "variable", "unused")
    gone = popir.remove_isolated(graph)
    assert [t.id for t in gone] == ["unused"]
    assert first.outputs[0].id in graph.tensors
