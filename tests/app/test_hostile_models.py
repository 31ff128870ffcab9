"""Models that were made to take time, memory and others along: when they are compiled,
loaded, warmed up and run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from engine.compiler import CompileOptions, compile_model
from tests.app.serving import ServedGateway, add, run_popgate

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
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 10
    onnx.save(model, path)
    return path


def put(root: Path, name: str, make: Callable[[Path], Path] = endless) -> None:
    """An ONNX file in a folder of its own."""
    (root / name / "1").mkdir(parents=True)
    make(root / name / "1" / "model.onnx")


class TestCompiling:
    def test_what_takes_too_long_is_an_error_of_its_own(self, tmp_path: Path) -> None:
        for number in range(3):
            put(tmp_path, f"endless{number}")
        add(tmp_path, "good")
        options = "--compile-timeout=3", "--load-threads=2", "--cache-dir"
        with ServedGateway(tmp_path, *options, str(tmp_path / ".cache")) as gateway:
            failed = (
                gateway.wait_ready().client.get("/v1/health/ready").json()["failed"]
            )
            assert set(failed) == {"endless0", "endless1", "endless2"}
            assert all("takes longer than 3 s to compile" in e for e in failed.values())
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

    def test_the_command_ends(self, tmp_path: Path) -> None:
        source, target = endless(tmp_path / "m.onnx"), tmp_path / "m.popef"
        found = run_popgate("compile", source, "-o", target, "--timeout=3")
        assert found.returncode == 1
        assert "takes longer than 3 s to compile" in found.stderr
        assert not target.exists()

    def test_the_check_of_rows_is_given_up(self, tmp_path: Path) -> None:
        options = CompileOptions(check_limit=0.5)
        report = compile_model(endless(tmp_path / "m.onnx"), tmp_path / "m", options)
        assert not report.batch.rows
        assert "given up" in report.batch.reason

    def test_the_command_takes_no_more_memory_than_it_may(self, tmp_path: Path) -> None:
        source, target = greedy(tmp_path / "m.onnx"), tmp_path / "m.popef"
        found = run_popgate("compile", source, "-o", target, "--memory=4GiB")
        assert found.returncode == 0, found.stderr
        assert "it could not be run on made-up rows" in found.stdout


def load(gateway: ServedGateway, name: str) -> int:
    try:
        return gateway.client.post(f"/v1/models/{name}/load").status_code
    except Exception:  # it ends while it compiles
        return 0
