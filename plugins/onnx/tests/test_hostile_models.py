"""Models that were made to take time, memory and others along: when they are compiled,
loaded, warmed up and run.

Covers: plugins/onnx/src/popgate_onnx/compiler/process.py,
    engine/programs/time_limit.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bench.servers.processes import children, tree
from engine.programs import executable as ex
from engine.run_failures import MOST
from popef_io import DataType, TensorInfo
from popgate_onnx.compiler import CompileOptions, compile_model
from tests.app.served import ServedGateway, add, run_popgate
from tests.engine.loops import NOTHING, looping, write
from tests.support import is_gone, until

WAIT = 60.0
ROW = [[1.0, 2.0, 3.0, 4.0]]
OUTPUT = [3.0, 5.0, 7.0, 9.0]


def endless(path: Path) -> Path:
    """y = x + 1 + 1 and so on, for longer than anybody waits."""
    value, rows = helper.make_tensor_value_info, ["rows", 4]
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["more"], ["go_on"]),
            helper.make_node("Add", ["sum", "one"], ["next"]),
        ],
        "body",
        [
            value("i", TensorProto.INT64, []),
            value("more", TensorProto.BOOL, []),
            value("sum", TensorProto.FLOAT, rows),
        ],
        [value("go_on", TensorProto.BOOL, []), value("next", TensorProto.FLOAT, rows)],
        [numpy_helper.from_array(np.float32(1), "one")],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["times", "", "x"], ["y"], body=body)],
        "graph",
        [value("x", TensorProto.FLOAT, rows)],
        [value("y", TensorProto.FLOAT, rows)],
        [numpy_helper.from_array(np.array(2**62), "times")],
    )
    return save(graph, path)


def greedy(path: Path) -> Path:
    """Makes 64 GiB of a single number."""
    graph = helper.make_graph(
        [
            helper.make_node("Expand", ["x", "large"], ["expanded"]),
            helper.make_node("ReduceMax", ["expanded", "last"], ["y"]),
        ],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 1])],
        [
            numpy_helper.from_array(np.array([1, 1 << 34]), "large"),
            numpy_helper.from_array(np.array([1]), "last"),
        ],
    )
    return save(graph, path)


def save(graph: onnx.GraphProto, path: Path) -> Path:
    onnx.save(model_of(graph), path)
    return path


def model_of(graph: onnx.GraphProto) -> onnx.ModelProto:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 10
    return model


def put(root: Path, name: str, make: Callable[[Path], Path] = endless) -> None:
    """An ONNX file in a folder of its own."""
    (root / name / "1").mkdir(parents=True)
    make(root / name / "1" / "model.onnx")


class TestCompiling:
    def test_what_takes_too_long_is_an_error_of_its_own(self, tmp_path: Path) -> None:
        for number in range(3):
            put(tmp_path, f"endless{number}")
        add(tmp_path, "good")
        options = "--compile-timeout=1", "--load-threads=2", "--cache-dir"
        with ServedGateway(tmp_path, *options, str(tmp_path / ".cache")) as gateway:
            failed = (
                gateway.wait_ready().client.get("/v1/health/ready").json()["failed"]
            )
            assert set(failed) == {"endless0", "endless1", "endless2"}
            assert all("took longer than 1 s" in e for e in failed.values())
            assert gateway.infer("good", input=ROW)["output"] == OUTPUT
            assert gateway.stop() == 0

    def test_it_keeps_no_other_model_from_loading_and_no_gateway_from_ending(
        self, tmp_path: Path
    ) -> None:
        add(tmp_path, "good")
        options = "--model-control-mode=explicit", "--load-threads=2", "--cache-dir"
        with ServedGateway(tmp_path, *options, str(tmp_path / ".cache")) as gateway:
            gateway.wait_ready()
            answers: list[int] = []
            threads = [
                threading.Thread(target=lambda n=n: answers.append(load(gateway, n)))
                for n in ("endless0", "endless1", "endless2", "endless3")
            ]
            for number in range(4):
                put(tmp_path, f"endless{number}")
            for thread in threads:
                thread.start()
            gateway.wait_line("model.onnx: compiling")
            assert load(gateway, "good") == 200
            assert gateway.infer("good", input=ROW)["output"] == OUTPUT
            assert gateway.client.post("/v1/models/good/unload").status_code == 200
            gateway.send(15)
            assert gateway.join() == 0
            for thread in threads:
                thread.join()

    def test_a_signal_meanwhile_ends_the_compiler_without_an_error(
        self, tmp_path: Path
    ) -> None:
        put(tmp_path, "endless")
        options = "--compile-timeout=600", "--cache-dir", str(tmp_path / ".cache")
        # All its processes are its own: none is forked from a warm one (tests/warm.py).
        with ServedGateway(tmp_path, *options, PYTHONUTF8="1") as gateway:
            gateway.wait_line("model.onnx: compiling")
            pid = gateway.process.pid
            # The process that compiles is forked from one that has the compiler.
            until(lambda: any(map(children, children(pid))))
            below = [each for each in tree(pid) if each != pid]
            assert gateway.stop() == 0
            for each in below:
                until(partial(is_gone, each))
            assert "'endless' is not loaded: the server ends" in gateway.output
            assert "ERROR" not in gateway.output
            assert "Traceback" not in gateway.output
        assert not [*(tmp_path / ".cache").rglob("*.popef*")]

    def test_the_command_ends(self, tmp_path: Path) -> None:
        source, target = endless(tmp_path / "m.onnx"), tmp_path / "m.popef"
        found = run_popgate("compile", source, "-o", target, "--timeout=1")
        assert found.returncode == 1
        assert "took longer than 1 s" in found.stderr
        assert not target.exists()

    def test_the_check_of_rows_is_given_up(self, tmp_path: Path) -> None:
        options = CompileOptions(check_limit=0.5)
        report = compile_model(endless(tmp_path / "m.onnx"), tmp_path / "m", options)
        assert not report.batch.rows
        assert "was stopped" in report.batch.reason

    def test_the_command_takes_no_more_memory_than_it_may(self, tmp_path: Path) -> None:
        source, target = greedy(tmp_path / "m.onnx"), tmp_path / "m.popef"
        found = run_popgate("compile", source, "-o", target, "--memory=4GiB")
        assert found.returncode == 0, found.stderr
        assert "it could not be run on synthetic rows" in found.stdout


def counting(path: Path) -> Path:
    """An ONNX file that adds 1 to `x` as often as `count` says."""
    names = "turn", "go", "sum"
    kinds = TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT
    shapes: tuple[list[int], ...] = [], [], [1]
    body = helper.make_graph(
        [
            helper.make_node("Add", ["sum", "one"], ["more"]),
            helper.make_node("Identity", ["go"], ["on"]),
        ],
        "body",
        [_value(*each) for each in zip(names, kinds, shapes, strict=True)],
        [_value("on", TensorProto.BOOL, []), _value("more", TensorProto.FLOAT, [1])],
        [numpy_helper.from_array(np.ones(1, np.float32), "one")],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["count", "", "x"], ["y"], body=body)],
        "graph",
        [_value("count", TensorProto.INT64, []), _value("x", TensorProto.FLOAT, [1])],
        [_value("y", TensorProto.FLOAT, [1])],
    )
    onnx_file = path.with_suffix(".onnx")
    onnx_file.write_bytes(model_of(graph).SerializeToString())
    compile_model(onnx_file, path, CompileOptions(batch="off"))
    onnx_file.unlink()
    return path


_value = helper.make_tensor_value_info


LOOPS: dict[str, Callable[[Path], Path]] = {
    "empty": looping,
    "copies": partial(looping, body=ex.Copy("x", "y")),
    "inside onnx": lambda path: compiled(endless, path),
}


def compiled(make: Callable[[Path], Path], path: Path) -> Path:
    source = make(path.with_suffix(".onnx"))
    compile_model(source, path, CompileOptions(batch="off"))
    source.unlink()
    return path


def heavy(path: Path, *, program: int = 1) -> Path:
    """A single step that takes minutes, and so cannot be ended: of 400,000 boxes that
    do not touch each other, each is compared with all that were chosen before it. At
    load (0) or in each run (1)."""
    count = 400_000
    left = np.arange(count, dtype=np.float32)[:, None]
    boxes = np.hstack([left, left * 0, left + 0.5, left * 0 + 1])[None]
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("NonMaxSuppression", ["moved", "scores", "most"], ["chosen"]),
        helper.make_node("ReduceMax", ["chosen"], ["last"], keepdims=0),
        helper.make_node("Cast", ["last"], ["number"], to=TensorProto.FLOAT),
    ]
    constants = [
        numpy_helper.from_array(boxes.astype(np.float32), "boxes"),
        numpy_helper.from_array(np.ones((1, 1, count), np.float32), "scores"),
        numpy_helper.from_array(np.array([count]), "most"),
    ]
    nodes.insert(0, helper.make_node("Add", ["boxes", "x"], ["moved"]))
    nodes.append(helper.make_node("Add", ["x", "number"], ["y"]))
    row = [value("x", TensorProto.FLOAT, [1, 4])], [value("y", TensorProto.FLOAT, None)]
    if program == 0:
        nodes[0].input[1] = "boxes"
        nodes[-1].input[0] = "number"
        row[0].clear()
    graph = helper.make_graph(nodes, "graph", *row, constants)
    info = TensorInfo((1, 4), DataType.F32)
    number = {"number": TensorInfo((), DataType.F32)} if program == 0 else {}
    run = ex.Execute("g", {"x": "x"}, {"y": "y"})
    if number:
        run = ex.Execute("g", {}, {"y": "number"})
    hand_on: tuple[ex.Node, ...] = (ex.StreamIn("in", "x"), ex.Copy("x", "y"))
    if program == 1:
        hand_on = (hand_on[0], run)
    out = ex.StreamOut("y", "out")
    executable = ex.Executable(
        {"g": ex.Graph("g", model_of(graph).SerializeToString(), "")},
        {"x": info, "y": info, **number},
        {0: run if program == 0 else NOTHING, 1: ex.Steps((*hand_on, out))},
    )
    return write(path, executable)


class TestRunning:
    """Programs that never end: of the model's own, nobody else is told."""

    @pytest.mark.parametrize("kind", LOOPS)
    def test_a_warm_up_that_never_ends(self, tmp_path: Path, kind: str) -> None:
        add(tmp_path, "good")
        add(tmp_path, "bad", LOOPS[kind])
        options = "--devices", "cpu:1", "--run-timeout", "0.3", "--device-timeout", "5"
        with ServedGateway(tmp_path, *options) as gateway:
            gateway.wait_ready()
            failed = gateway.client.get("/v1/health/ready").json()["failed"]
            assert "a run exceeded the limit of 0.3 s" in failed["bad"]
            assert gateway.infer("good", input=ROW)["output"] == OUTPUT
            assert load(gateway, "bad") == 400
            assert gateway.infer("good", input=ROW)["output"] == OUTPUT
            (device,) = gateway.client.get("/v1/devices").json()["devices"]
            assert device["restarts"] == 0
            assert gateway.stop() == 0

    def test_load_programs_that_never_end(self, tmp_path: Path) -> None:
        add(tmp_path, "good")
        add(tmp_path, "bad", partial(looping, program=0))
        options = "--devices", "cpu:1", "--load-timeout", "1.5", "--device-timeout", "5"
        with ServedGateway(tmp_path, *options) as gateway:
            gateway.wait_ready()
            failed = gateway.client.get("/v1/health/ready").json()["failed"]
            assert "the load programs exceeded 1.5 s" in failed["bad"]
            assert gateway.infer("good", input=ROW)["output"] == OUTPUT
            (device,) = gateway.client.get("/v1/devices").json()["devices"]
            assert device["restarts"] == 0

    @pytest.mark.parametrize("program", [0, 1], ids=["load", "run"])
    def test_what_cannot_be_ended_ends_with_its_device(
        self, tmp_path: Path, program: int
    ) -> None:
        """The device is replaced, with the other models and without this one."""
        add(tmp_path, "good")
        options = ["--devices=cpu:1", "--device-timeout=30", "--run-timeout=0.3"]
        if program == 0:
            options += ["--load-timeout", "1.5"]
        with ServedGateway(tmp_path, *options) as gateway:
            gateway.wait_ready()
            add(tmp_path, "bad", partial(heavy, program=program))
            answer = gateway.client.post("/v1/models/bad/load")
            assert answer.status_code == 400, answer.text
            assert "exceeded" in answer.json()["error"]
            gateway.wait_line("is back")
            gateway.wait_ready()
            assert gateway.infer("good", input=ROW)["output"] == OUTPUT
            (device,) = gateway.client.get("/v1/devices").json()["devices"]
            assert device["restarts"] == 1
            assert "bad" in device["lost_by"] or "still running" in device["lost_by"]
            assert list(gateway.client.get("/v1/health/ready").json()["failed"]) == [
                "bad"
            ]

    def test_a_warm_up_ends_with_the_time_to_load(self, tmp_path: Path) -> None:
        add(tmp_path, "good")
        options = "--devices", "cpu:1", "--load-timeout", "1.5", "--run-timeout", "0"
        with ServedGateway(tmp_path, *options) as gateway:
            gateway.wait_ready()
            add(tmp_path, "bad", looping)
            response = gateway.client.post("/v1/models/bad/load")
            assert response.status_code == 400, response.text
            assert "it takes too long" in response.text
            assert gateway.infer("good", input=ROW)["output"] == OUTPUT

    def test_inference_that_never_ends(self, tmp_path: Path) -> None:
        """The request fails; the model is out of service after several in a row."""
        add(tmp_path, "good")
        add(tmp_path, "bad", looping, config="[warmup]\nenabled = false\n")
        options = "--devices", "cpu:1", "--run-timeout", "0.3", "--device-timeout", "5"
        with ServedGateway(tmp_path, *options) as gateway:
            gateway.wait_ready()
            body = {"inputs": {"x": ROW}}
            for _ in range(MOST):
                response = gateway.client.post("/v1/models/bad/infer", json=body)
                assert response.status_code == 500, response.text
                assert "a run exceeded the limit of 0.3 s" in response.text
                assert gateway.infer("good", input=ROW)["output"] == OUTPUT
            response = gateway.client.post("/v1/models/bad/infer", json=body)
            assert response.status_code == 503, response.text
            assert (
                f"a run exceeded the limit of 0.3 s (--run-timeout), {MOST}"
                in response.text
            )
            failed = gateway.client.get("/v1/health/ready").json()["failed"]
            assert list(failed) == ["bad"]
            (device,) = gateway.client.get("/v1/devices").json()["devices"]
            assert device["restarts"] == 0
            assert gateway.stop() == 0

    @pytest.mark.parametrize("workers", ["1", "2"])
    def test_a_run_whose_input_makes_it_long(
        self, tmp_path: Path, workers: str
    ) -> None:
        """The count of a Loop is an input: whoever sends a large one takes the model
        from nobody else."""
        add(tmp_path, "good")
        add(tmp_path, "loop", counting, config="[warmup]\nenabled = false\n")
        options = ["--devices", "cpu:1", "--run-timeout", "0.3", "--workers", workers]
        with ServedGateway(tmp_path, *options) as gateway:
            gateway.wait_ready()

            def count(turns: int) -> httpx.Response:
                body = {"inputs": {"count": turns, "x": [1.0]}}
                return gateway.client.post("/v1/models/loop/infer", json=body)

            for _ in range(MOST + 1):
                response = count(2**62)
                assert response.status_code == 500, response.text
                assert "a run exceeded the limit of 0.3 s" in response.text
                answer = count(3)
                assert answer.status_code == 200, answer.text
                assert answer.json()["outputs"][0]["data"] == [4.0]
                assert gateway.infer("good", input=ROW)["output"] == OUTPUT
            assert gateway.client.get("/v1/health/ready").status_code == 200
            (device,) = gateway.client.get("/v1/devices").json()["devices"]
            assert device["restarts"] == 0


def load(gateway: ServedGateway, name: str) -> int:
    try:
        return gateway.client.post(f"/v1/models/{name}/load").status_code
    except Exception:  # it ends while it compiles
        return 0
