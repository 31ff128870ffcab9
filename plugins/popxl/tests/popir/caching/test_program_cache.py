"""Compiled programs in a folder.

Covers: plugins/popxl/src/popir/caching/program_cache.py,
    plugins/popxl/src/popir/caching/fingerprint.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import popart
import popxl
from engine import InvalidModel, ModelRunner, ModelRunnerConfig
from popxl import ops
from popxl.custom import CustomOperator
from popxl.ops import collectives
from popxl.transforms import autodiff

F32 = popxl.float32
LOADING = "Loading serialized PopART executable"
COMPILING = "Starting compilation"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that does not exist yet, which sessions use."""
    monkeypatch.setenv("POPXL_CACHE_DIR", str(tmp_path / "deep" / "cache"))
    monkeypatch.setenv("POPART_LOG_LEVEL", "DEBUG")
    return tmp_path / "deep" / "cache"


def scaled(
    value: float = 2.0, factor: float = 3.0, shape: tuple[int, ...] = (2,)
) -> tuple[popxl.Ir, Any, Any]:
    """A program that multiplies a variable, which it changes, by a constant."""
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        w = popxl.variable(np.full(shape, value, np.float32), name="w")
        out = popxl.d2h_stream(shape, F32, name="out")
        ops.host_store(out, w * factor)
        ops.add_(w, popxl.constant(1.0))
    return ir, w, out


def result(program: tuple[popxl.Ir, Any, Any]) -> float:
    """What a session of the program gives; the variable must have changed."""
    ir, w, out = program
    session = popxl.Session(ir, "ipu_model")
    before = session.get_tensor_data(w).copy()
    with session:
        found = float(session.run()[out].reshape(-1)[0])
    assert (session.get_tensor_data(w) == before + 1).all()
    return found


def files(folder: Path) -> list[Path]:
    """The compiled programs of the folder."""
    return sorted(folder.glob("*.popef"))


def said(capfd: pytest.CaptureFixture[str]) -> tuple[bool, bool]:
    """Whether a session said that it compiled, and that it loaded."""
    text = capfd.readouterr().err
    return COMPILING in text, LOADING in text


def test_the_second_session_loads(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert result(scaled()) == 6
    assert said(capfd) == (True, False)
    (path,) = files(folder)
    assert result(scaled(5.0)) == 15, "weights are those of its own Ir"
    text = capfd.readouterr().err
    assert COMPILING not in text
    assert f"{LOADING} from {path}" in text
    assert f"has been found: {path}" in text
    ir, w, out = scaled()
    session = popxl.Session(ir, "ipu_model")
    with session:
        session.write_variable_data(w, np.full(2, 7, np.float32))
        assert session.run()[out].tolist() == [21, 21]
    assert said(capfd) == (False, True)


@pytest.mark.parametrize(
    "other",
    [
        lambda: scaled(factor=4.0),
        lambda: scaled(shape=(3,)),
        lambda: with_option("engineOptions", {"a": "b"}),
        lambda: with_option("enableInplaceAmbiguityChecking", False),
    ],
)
def test_another_program_compiles(
    folder: Path, capfd: pytest.CaptureFixture[str], other: Callable[[], Any]
) -> None:
    result(scaled())
    capfd.readouterr()
    result(other())
    assert said(capfd) == (True, False)
    assert len(files(folder)) == 2


def with_option(name: str, value: object) -> tuple[popxl.Ir, Any, Any]:
    """The program with a session option."""
    program = scaled()
    setattr(program[0]._session_options, name, value)
    return program


def test_options_instead_of_variables(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    popart.getLogger().setLevel("DEBUG")
    try:
        for expected in ((True, False), (False, True)):
            program = scaled()
            options = program[0]._pb_ir.getSessionOptions()
            options.enableEngineCaching = True
            options.cachePath = str(tmp_path / "here")
            result(program)
            assert said(capfd) == expected
    finally:
        popart.getLogger().level = None


def damaged(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def foreign(path: Path) -> None:
    path.write_bytes(b"no container")


def of_another_program(path: Path) -> None:
    path.unlink()
    result(scaled(factor=9.0))
    (other,) = files(path.parent)
    other.rename(path)


@pytest.mark.parametrize("spoil", [damaged, cut, foreign, of_another_program])
def test_files_that_cannot_be_used(
    folder: Path, capfd: pytest.CaptureFixture[str], spoil: Callable[[Path], None]
) -> None:
    result(scaled())
    (path,) = files(folder)
    spoil(path)
    capfd.readouterr()
    assert result(scaled()) == 6
    text = capfd.readouterr().err
    assert COMPILING in text
    assert LOADING not in text
    assert "[W]" in text
    assert ("Ignoring cache file" in text) or ("hash did not match" in text)
    assert result(scaled()) == 6
    assert said(capfd) == (False, True), "it was written again"


def test_a_file_that_was_renamed(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result(scaled())
    (path,) = files(folder)
    path.rename(folder / "mine.popef")
    (folder / "other.popef").write_bytes(b"x")
    capfd.readouterr()
    result(scaled())
    assert said(capfd) == (False, True)


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("POPXL_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert result(scaled()) == 6
    assert "could not be cached" in capfd.readouterr().err


def test_the_least_recently_used_go(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for number, factor in enumerate((1.5, 2.5, 3.5)):
        result(scaled(factor=factor))
        for path in files(folder):
            if path.stat().st_mtime > 1000:  # the new one
                os.utime(path, (number, number))
    result(scaled(factor=1.5))  # used again
    size = max(path.stat().st_size for path in files(folder))
    monkeypatch.setenv("POPXL_CACHE_SIZE", str(3 * size + 10))
    result(scaled(factor=4.5))
    capfd.readouterr()
    for factor, compiles in ((1.5, False), (3.5, False), (4.5, False), (2.5, True)):
        result(scaled(factor=factor))
        assert said(capfd) == (compiles, not compiles), factor
    monkeypatch.setenv("POPXL_CACHE_SIZE", "lots")
    with pytest.raises(popart.popart_exception, match="POPXL_CACHE_SIZE is 'lots'"):
        result(scaled())


def everything() -> tuple[popxl.Ir, list[Any], dict[Any, Any]]:
    """A program with all that a session keeps by name: streams, rows, collectives,
    prints, scales, called graphs, gradients, shards."""
    ir = popxl.Ir(replication=2)
    with ir.main_graph, popxl.in_sequence():
        stream = popxl.h2d_stream((2,), F32, name="x")
        x = ops.host_load(stream)
        buffer = popxl.remote_buffer((2,), F32, 3)
        remote = popxl.remote_variable(np.ones(2, np.float32), buffer, 1, name="r")
        row = ops.remote_load(buffer, 1)
        at = ops.cast(ops.reshape(ops.slice(x, 0, 1), ()), popxl.uint32)
        ops.remote_store(buffer, at, row + x)
        handle, shard = popxl.replica_sharded_variable(np.arange(3.0), F32, "s")
        whole = collectives.replicated_all_gather(shard)
        graph = ir.create_graph(lambda t: ops.tanh(t) * t, x)
        back: Any = autodiff(graph)
        call = ops.call_with_info(graph, x)
        (dx,) = ops.call(back.graph, x, inputs_dict=back.inputs_dict(call))
        total = collectives.replicated_all_reduce(dx)
        ops.print_tensor(total, title="total")
        ops.add_(shard, popxl.constant(np.float32(1)))
        outs = []
        for t in (row, whole, total):
            outs.append(popxl.d2h_stream(t.shape, t.dtype))
            ops.host_store(outs[-1], t)
    data = np.array([[2, 3], [2, 5]], np.float32)
    session = popxl.Session(ir, "ipu_model")
    found = []
    with session:
        found += [session.run({stream: data})[out] for out in outs]
        found += session.get_tensors_data([handle, remote]).values()
    return ir, found, {}


def test_all_that_a_program_names(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _, first, _ = everything()
    text = capfd.readouterr().err
    assert COMPILING in text
    _, second, _ = everything()
    again = capfd.readouterr().err
    assert COMPILING not in again
    assert LOADING in again
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
    assert text.count("total: ") == again.count("total: ") == 3 * 2


class Twice(CustomOperator):
    """An operator that no name describes."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def results(self, x: Any) -> Any:
        return x

    def onnx(self, b: Any, x: Any) -> Any:
        return x * self.factor


def test_operators_of_the_users_own_are_compiled_each_time(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for factor in (2.0, 3.0):
        ir = popxl.Ir()
        with ir.main_graph:
            out = popxl.d2h_stream((), F32)
            ops.host_store(out, Twice(factor)(popxl.variable(1.0)))
        with popxl.Session(ir, "ipu_model") as session:
            assert session.run()[out] == factor
        assert said(capfd) == (True, False)
    assert files(folder) == []


def test_a_cached_file_is_a_model(folder: Path) -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        x = popxl.h2d_stream((2,), F32, "x")
        y = popxl.d2h_stream((2,), F32, "y")
        w = popxl.variable(np.full(2, 3, np.float32), name="w")
        ops.host_store(y, ops.host_load(x) * w)
    popxl.Session(ir, "ipu_model")
    (path,) = files(folder)
    with ModelRunner(path, ModelRunnerConfig()) as runner:
        given = np.array([1, 2], np.float32)
        assert runner.execute({"x": given})["y"].tolist() == [3, 6]


def reduced(is_in_branch: bool) -> tuple[popxl.Ir, Any, Any]:
    """A program of two replicas with a row of their own, and a sum."""
    ir = popxl.Ir(replication=2)
    with ir.main_graph, popxl.in_sequence():
        stream = popxl.h2d_stream((2,), F32, "x")
        out = popxl.d2h_stream((2,), F32, "y")
        buffer = popxl.remote_buffer((2,), F32, 2)
        popxl.remote_variable(np.full(2, 10, np.float32), buffer, 1, name="r")
        x = ops.host_load(stream) + ops.remote_load(buffer, 1)
        if is_in_branch:
            graph = ir.create_graph(collectives.replicated_all_reduce, x)
            always = popxl.constant(True, popxl.bool)
            (total,) = ops.conditional(always, graph, graph, [x], [x])
        else:
            total = collectives.replicated_all_reduce(x)
        ops.remote_store(buffer, 1, total)
        ops.host_store(out, total)
    return ir, stream, out


GIVEN = np.array([[1, 2], [3, 4]], np.float32)
#: Two runs of it.
SUMS = [[[24, 26]] * 2, [[52, 58]] * 2]


@pytest.mark.parametrize("is_in_branch", [False, True])
def test_a_cached_file_of_replicas_and_rows(
    is_in_branch: bool, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for is_loaded in (False, True):
        ir, stream, out = reduced(is_in_branch)
        with popxl.Session(ir, "ipu_model") as session:
            found = [session.run({stream: GIVEN})[out].tolist() for _ in range(2)]
        assert found == SUMS
        assert said(capfd) == (not is_loaded, is_loaded)
    (path,) = files(folder)
    if is_in_branch:
        # Replicas take branches by themselves: only a session runs that.
        with pytest.raises(InvalidModel, match="no executable"):
            ModelRunner(path, ModelRunnerConfig())
        return
    with ModelRunner(path, ModelRunnerConfig()) as runner:
        served = [runner.execute({"x": GIVEN})["y"].tolist() for _ in range(2)]
    assert served == SUMS


def test_two_processes_fill_one_folder(folder: Path) -> None:
    program = (
        "import numpy as np, popxl; from popxl import ops; ir = popxl.Ir()\n"
        "with ir.main_graph:\n"
        "    w = popxl.variable(np.ones((300, 300), np.float32))\n"
        "    o = popxl.d2h_stream(w.shape, w.dtype); ops.host_store(o, w * 2.0)\n"
        "for _ in range(5):\n"
        "    with popxl.Session(ir, 'ipu_model') as s: print(s.run()[o].sum())\n"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in running:
        out, errors = process.communicate()
        assert out.split() == ["180000.0"] * 5, errors
        assert "[W]" not in errors
    assert len(files(folder)) == 1
    assert len(list(folder.iterdir())) == 1, "nothing else stays"
