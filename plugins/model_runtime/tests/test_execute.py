"""The forms of `execute` and `executeAsync`, and whose memory is whose."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import model_runtime
import popef
from engine import AnchorsNotConnected, InvalidInput, UnknownAnchor

WEIGHTS = np.linspace(0.5, 2.0, 4, dtype=np.float32)
Array = np.ndarray[Any, Any]


def request_of(rows: int = 3, start: int = 0) -> dict[str, Array]:
    a = np.arange(start, start + rows * 4, dtype=np.float32).reshape(rows, 4)
    return {"tensor_A": a, "tensor_B": 100 - a}


def expected(inputs: dict[str, Array]) -> Array:
    result: Array = inputs["tensor_A"] * WEIGHTS + inputs["tensor_B"]
    return result


def view_of(arrays: dict[str, Array]) -> model_runtime.InputMemoryView:
    view = model_runtime.InputMemoryView()
    for name, array in arrays.items():
        view[name] = array
    return view


def test_execute_with_views(runner: model_runtime.ModelRunner) -> None:
    inputs = request_of()
    result = runner.execute(view_of(inputs))
    flat = np.frombuffer(result["output"], dtype=np.float32)
    np.testing.assert_allclose(flat.reshape(3, 4), expected(inputs))


def test_execute_with_views_into_memory_of_the_caller(
    runner: model_runtime.ModelRunner,
) -> None:
    inputs, out = request_of(), np.zeros((3, 4), np.float32)
    outputs = model_runtime.OutputMemoryView()
    outputs["output"] = out
    runner.execute(view_of(inputs), outputs)
    np.testing.assert_allclose(out, expected(inputs))


def test_execute_with_dicts(runner: model_runtime.ModelRunner) -> None:
    inputs = request_of()
    result = runner.execute(inputs)
    assert result["output"].shape == (3, 4)
    assert result["output"].dtype == np.float32
    np.testing.assert_allclose(result["output"], expected(inputs))


def test_execute_with_dicts_into_memory_of_the_caller(
    runner: model_runtime.ModelRunner,
) -> None:
    inputs, out = request_of(), {"output": np.zeros((3, 4), np.float32)}
    runner.execute(inputs, out)
    np.testing.assert_allclose(out["output"], expected(inputs))


def test_async_with_views_has_a_buffer(runner: model_runtime.ModelRunner) -> None:
    inputs = request_of()
    result = runner.executeAsync(view_of(inputs))
    result.wait()
    flat = np.frombuffer(result["output"], dtype=np.float32)
    np.testing.assert_allclose(flat.reshape(3, 4), expected(inputs))


def test_async_with_views_fills_memory_of_the_caller(
    runner: model_runtime.ModelRunner,
) -> None:
    inputs, out = request_of(), np.zeros((3, 4), np.float32)
    outputs = model_runtime.OutputMemoryView()
    outputs["output"] = out
    future = runner.executeAsync(view_of(inputs), outputs)
    future.wait()
    np.testing.assert_allclose(out, expected(inputs))


def test_memory_of_the_library(runner: model_runtime.ModelRunner) -> None:
    future = runner.executeAsync(request_of())
    future.wait()
    array = future["output"]
    first, second = array.numpy(), np.array(array, copy=True)
    view, again = np.array(array, copy=False), np.array(array, copy=False)
    assert type(view) is type(first) is np.ndarray
    assert not np.shares_memory(view, second)
    assert not np.shares_memory(first, second)
    assert not np.shares_memory(first, view)
    assert np.shares_memory(view, again)
    assert np.shares_memory(view, np.frombuffer(array.data, np.float32))
    np.testing.assert_allclose(view, expected(request_of()))
    np.testing.assert_array_equal(first, view)
    np.testing.assert_array_equal(second, view)


def test_memory_of_the_caller(runner: model_runtime.ModelRunner) -> None:
    out = {"output": np.zeros((3, 4), np.float32)}
    future = runner.executeAsync(request_of(), out)
    future.wait()
    array = future["output"]
    assert np.shares_memory(array.numpy(), out["output"])
    assert np.shares_memory(np.array(array, copy=False), out["output"])
    assert not np.shares_memory(np.array(array, copy=True), out["output"])
    array.numpy()[0, 0] = 7
    assert out["output"][0, 0] == 7


@pytest.mark.parametrize("rows", [3, 6, 300])
def test_a_multiple_of_the_batch_comes_back_as_large(
    runner: model_runtime.ModelRunner, rows: int
) -> None:
    inputs = request_of(rows)
    np.testing.assert_allclose(runner.execute(inputs)["output"], expected(inputs))
    (desc,) = runner.getExecuteOutputs()
    shape = desc.shape
    shape[0] = rows
    out = np.zeros(shape, desc.numpy_data_type())
    future = runner.executeAsync(view_of(inputs), {"output": out})
    future.wait()
    np.testing.assert_allclose(out, expected(inputs))


def test_a_view_is_bytes(runner: model_runtime.ModelRunner) -> None:
    inputs, out = request_of(6), np.zeros(24, np.float32)
    view = model_runtime.InputMemoryView()
    view["tensor_A"] = inputs["tensor_A"].tobytes()
    view["tensor_B"] = inputs["tensor_B"].reshape(-1)
    runner.execute(view, {"output": out})
    np.testing.assert_allclose(out.reshape(6, 4), expected(inputs))


def test_a_hundred_requests_and_one_wait(runner: model_runtime.ModelRunner) -> None:
    sent = [request_of(start=12 * number) for number in range(100)]
    outputs = [np.zeros((3, 4), np.float32) for _ in sent]
    view, out_view = model_runtime.InputMemoryView(), model_runtime.OutputMemoryView()
    for inputs, out in zip(sent, outputs, strict=True):
        for name, array in inputs.items():
            view[name] = array.astype(np.float32)  # nobody else holds it
        out_view["output"] = out
        future = runner.executeAsync(view, out_view)
    future.wait()
    for inputs, out in zip(sent, outputs, strict=True):
        np.testing.assert_allclose(out, expected(inputs))


def test_two_thousand_requests_in_flight(runner: model_runtime.ModelRunner) -> None:
    inputs = request_of()
    futures = [runner.executeAsync(inputs) for _ in range(2000)]
    futures[-1].wait()
    np.testing.assert_allclose(futures[1000]["output"], expected(inputs))


def test_a_result_holds_its_runner(simple: str) -> None:
    inputs = request_of()
    future = model_runtime.ModelRunner(simple).executeAsync(inputs)
    gc.collect()
    future.wait()
    np.testing.assert_allclose(future["output"], expected(inputs))


def test_a_runner_nobody_holds_frees_its_device(simple: str) -> None:
    manager = model_runtime.DeviceManager()
    for _ in range(4):  # more often than there are devices
        model_runtime.ModelRunner(simple).execute(request_of())
    assert manager.tryGetDevice(1) is not None


@pytest.fixture
def no_cycles() -> Iterator[None]:
    """What is freed is freed at once, not when the garbage collector looks."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_cycles")
def test_a_failed_request_does_not_keep_the_device(simple: str) -> None:
    fused = str(Path(simple).with_name("fused.popef"))
    for _ in range(4):  # more often than there are devices
        config = model_runtime.ModelRunnerConfig()
        config.validate_io_params = False
        other = model_runtime.ModelRunner(fused, config)
        future = other.executeAsync({"index": np.array([0])})
        with pytest.raises(InvalidInput, match="sum/"):
            future.wait()
        del other, future


@pytest.mark.usefixtures("no_cycles")
def test_a_failed_run_does_not_keep_the_device(simple: str) -> None:
    for _ in range(4):
        config = model_runtime.SessionConfig()
        config.policy = model_runtime.LaunchPolicy.Immediate
        session = model_runtime.Session(simple, config)
        with pytest.raises(AnchorsNotConnected, match="tensor_A"):
            session.runMainPrograms()
        del session


def test_frozen_inputs_leave_the_request(simple: str) -> None:
    config = model_runtime.ModelRunnerConfig()
    inputs = request_of()
    config.frozen_inputs["tensor_B"] = inputs["tensor_B"]
    config.frozen_inputs["weights"] = np.ones(4, np.float32)
    runner = model_runtime.ModelRunner(simple, config=config)
    assert [desc.name for desc in runner.getExecuteInputs()] == ["tensor_A"]
    result = runner.execute({"tensor_A": inputs["tensor_A"]})
    np.testing.assert_allclose(result["output"], np.full((3, 4), 100))


def test_descriptors(runner: model_runtime.ModelRunner) -> None:
    inputs = runner.getExecuteInputs()
    assert [d.name for d in inputs] == ["tensor_A", "tensor_B"]
    first = inputs[0]
    first.shape[0] = 9
    assert first.shape == [3, 4]
    assert first.size_in_bytes == 48
    assert first.data_type is popef.DataType.F32
    assert popef.popefTypeToNumpyDType(first.data_type) == first.numpy_data_type()
    assert not first.popef_contains_tensor_data
    model = {d.name: d.popef_contains_tensor_data for d in runner.getModelInputs()}
    assert model == {"tensor_A": False, "tensor_B": False, "weights": True}
    assert [d.name for d in runner.getModelOutputs()] == ["output"]
    assert "tensor_A" in repr(inputs)


def test_wrong_requests_are_refused(runner: model_runtime.ModelRunner) -> None:
    inputs = request_of()
    with pytest.raises(InvalidInput, match="tensor_B"):
        runner.execute({"tensor_A": inputs["tensor_A"]})
    with pytest.raises(UnknownAnchor, match="tensor_C"):
        runner.execute({**inputs, "tensor_C": inputs["tensor_A"]})
    with pytest.raises(InvalidInput, match="tensor_A"):
        runner.execute({name: a.astype("f8") for name, a in inputs.items()})
    with pytest.raises(InvalidInput, match="shape"):
        runner.execute({name: a[:, :2] for name, a in inputs.items()})
    with pytest.raises(TypeError):
        model_runtime.InputMemoryView()["tensor_A"] = 3
    with pytest.raises(ValueError, match="read-only"):
        model_runtime.OutputMemoryView()["output"] = b"1234"
    with pytest.raises(TypeError, match="name of a tensor, got int"):
        model_runtime.InputMemoryView()[3] = inputs["tensor_A"]  # type: ignore[index]
    no_mapping: list[Any] = [None, list(inputs.values())]
    for wrong in no_mapping:
        with pytest.raises(TypeError, match="by name"):
            runner.execute(wrong)


@pytest.mark.parametrize(
    ("memory", "says"),
    [
        ({}, r"memory for output 'output' is missing; got \[\]"),
        ({"output": np.zeros((6, 4), "f4")}, r"float32 \[6, 4\], expected .* \[3, 4\]"),
        ({"output": np.zeros((2, 4), "f4")}, r"float32 \[2, 4\], expected .* \[3, 4\]"),
        ({"output": np.zeros((3, 4), "f8")}, r"float64 \[3, 4\], expected float32"),
        ({"output": np.broadcast_to(np.float32(0), (3, 4))}, "read-only"),
    ],
)
def test_wrong_memory_is_refused_before_anything_is_queued(
    runner: model_runtime.ModelRunner, memory: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidInput, match=says):
        runner.executeAsync(request_of(), memory)


def test_memory_of_as_many_rows_as_the_request(
    runner: model_runtime.ModelRunner,
) -> None:
    inputs = {name: np.tile(a, (2, 1)) for name, a in request_of().items()}
    output = np.zeros((6, 4), np.float32)
    runner.execute(inputs, {"output": output})
    np.testing.assert_array_equal(output, runner.execute(inputs)["output"])
    with pytest.raises(InvalidInput, match=r"expected float32 \[6, 4\]"):
        runner.execute(inputs, {"output": output[:3]})


def test_a_view_gives_tensor_memory_and_a_dict_arrays(
    runner: model_runtime.ModelRunner,
) -> None:
    """Model Runtime User Guide 3.1: a TensorMemory instance for each output tensor."""
    inputs = request_of()
    memory = runner.execute(view_of(inputs))["output"]
    assert isinstance(memory, model_runtime.TensorMemory)
    assert memory.data_size_bytes == 48
    assert (memory.shape, memory.dtype) == ((3, 4), np.float32)
    for view in (memory.getView(), memory.getConstView(), memory.data):
        flat = np.frombuffer(view, np.float32)
        np.testing.assert_allclose(flat.reshape(3, 4), expected(inputs))
        assert np.shares_memory(flat, memory)
    memory.getView()[:4] = 0
    assert memory[0, 0] == 0
    assert not memory.getConstView().flags.writeable
    assert type(runner.execute(inputs)["output"]) is np.ndarray
    future = runner.executeAsync(view_of(inputs))["output"]
    assert isinstance(future, model_runtime.TensorMemory)
    assert future.data_size_bytes == 48
    np.testing.assert_allclose(
        np.frombuffer(future.getConstView(), np.float32), expected(inputs).ravel()
    )


def test_what_is_computed_of_an_output_is_ordinary(
    runner: model_runtime.ModelRunner,
) -> None:
    inputs, out = request_of(), np.zeros((3, 4), np.float32)
    outputs = {"output": out}
    for x in (
        runner.executeAsync(inputs)["output"],
        runner.executeAsync(inputs, outputs)["output"],
        runner.execute(view_of(inputs))["output"],
    ):
        for number in (x.mean(), x.sum(), x.max(), np.min(x), np.mean(x), x[0, 0]):
            assert isinstance(number, np.floating)
        assert isinstance(x.argmax(), np.integer)
        assert isinstance(x.any(), np.bool_)
        for array in (x + 1, 1 - x, x @ x.T, np.negative(x), x.mean(axis=0), x > 0):
            assert type(array) is np.ndarray
        same = x
        x += 1
        assert x is same
        np.testing.assert_allclose(x, expected(inputs) + 1)
        assert np.add(x, 1, out=x) is x
        total = np.zeros(4, np.float32)
        assert np.sum(x, axis=0, out=total) is total
        np.testing.assert_allclose(total, (expected(inputs) + 2).sum(axis=0))
    np.testing.assert_allclose(out, expected(inputs) + 2)


def test_memory_of_any_layout(runner: model_runtime.ModelRunner) -> None:
    """Inputs, and memory for outputs, in any order of their bytes."""
    inputs = request_of()
    wide = np.zeros((3, 8), np.float32)
    wide[:, ::2] = inputs["tensor_A"]
    read_only = inputs["tensor_B"].copy()
    read_only.flags.writeable = False
    name: Any = b"tensor_A"  # the types say `str`
    out_name: Any = b"output"
    arrays: list[Any] = [
        np.asfortranarray(inputs["tensor_A"]),
        wide[:, ::2],
        wide[:, ::2].data,
        inputs["tensor_A"].copy().data,
        np.ma.masked_array(inputs["tensor_A"]),
    ]
    for a in arrays:
        given: Any = {name: a, "tensor_B": read_only}
        view = model_runtime.InputMemoryView()
        view[name], view["tensor_B"] = a, read_only.data
        assert view[name] is view["tensor_A"]
        for request in (given, view):
            result = runner.execute(request)
            np.testing.assert_allclose(result["output"], expected(inputs))
            assert result[out_name] is result["output"]
            into = np.zeros((3, 8), np.float32)
            for out in (np.zeros((4, 3), np.float32).T, into[:, 1::2]):
                targets = model_runtime.OutputMemoryView()
                targets["output"] = out
                runner.execute(request, targets)
                np.testing.assert_allclose(out, expected(inputs))
                assert runner.executeAsync(request, {"output": out})["output"].any()
            assert not into[:, ::2].any()


def test_one_path_alone_is_a_list_of_it(simple: str) -> None:
    assert model_runtime.PopefPaths(simple) == [simple]
    assert model_runtime.PopefPaths([simple.encode(), Path(simple)]) == [simple] * 2
    for source in (model_runtime.PopefPaths(simple), simple.encode(), Path(simple)):
        runner = model_runtime.ModelRunner(source)
        assert runner.getExecuteInputs()[0].name == "tensor_A"
        del runner


def test_descriptors_can_be_changed() -> None:
    desc = model_runtime.DataDesc(b"x", 8, (np.int64(2), 1), popef.DataType.F32)
    assert (desc.name, desc.shape) == ("x", [2, 1])
    desc.shape.append(3)
    assert desc.shape == [2, 1]
    desc.shape = [4, 1]
    desc.name, desc.size_in_bytes = "y", 16
    desc.data_type, desc.popef_contains_tensor_data = popef.DataType.S32, True
    assert repr(desc) == "<DataDesc 'y' S32[4, 1]>"
    assert (desc.size_in_bytes, desc.popef_contains_tensor_data) == (16, True)
    assert desc.numpy_data_type() == np.int32
    with pytest.raises(TypeError, match="shape: expected a whole number, got float"):
        desc.shape = [1.5]  # type: ignore[list-item]
    with pytest.raises(AttributeError):
        desc.shapes = [1]  # type: ignore[attr-defined]
