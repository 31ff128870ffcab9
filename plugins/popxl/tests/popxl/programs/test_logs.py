import json

import numpy as np

import popxl
from popxl import ops


def prog():
    ir = popxl.Ir()
    with ir.main_graph:
        v = popxl.variable(np.zeros(2, np.float32), name="v")
        with popxl.in_sequence():
            ops.add_(v, popxl.constant([1.0, 2.0]))
    return ir, v


def test_env(capfd, monkeypatch, tmp_path):
    ir, v = prog()
    monkeypatch.setenv("POPART_LOG_LEVEL", "OFF")
    popxl.Session(ir)
    assert capfd.readouterr().err == ""
    monkeypatch.setenv("POPART_LOG_LEVEL", "DEBUG")
    monkeypatch.setenv("POPART_LOG_DEST", "stdout")
    popxl.Session(ir)
    c = capfd.readouterr()
    assert "Starting compilation" in c.out
    assert "Starting compilation" not in c.err
    monkeypatch.setenv("POPART_LOG_DEST", str(tmp_path / "log"))
    popxl.Session(ir)
    assert "Starting compilation" in (tmp_path / "log").read_text()
    monkeypatch.delenv("POPART_LOG_LEVEL")
    monkeypatch.setenv("POPART_LOG_DEST", "stderr")
    popxl.Session(ir)
    assert "Starting" not in capfd.readouterr().err
    (tmp_path / "c.json").write_text(json.dumps({"all": "DEBUG"}))
    monkeypatch.setenv("POPART_LOG_CONFIG", str(tmp_path / "c.json"))
    popxl.Session(ir)
    assert "Starting compilation" in capfd.readouterr().err
    (tmp_path / "c.json").write_text(json.dumps({"session": "DEBUG"}))
    popxl.Session(ir)
    assert "Starting compilation" in capfd.readouterr().err
    monkeypatch.setenv("POPART_LOG_FORMAT", "XX%v")
    popxl.Session(ir)
    capfd.readouterr()


def test_trace(capfd, monkeypatch):
    monkeypatch.setenv("POPART_LOG_LEVEL", "TRACE")
    ir, v = prog()
    with popxl.Session(ir) as s:
        s.run()
    assert (
        "Reusing TensorData for d2hWeightBuffer of tensor v" in capfd.readouterr().err
    )
