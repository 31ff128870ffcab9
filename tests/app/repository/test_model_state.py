"""Over HTTP: inputs that are frozen, feeds, and state that is saved when a model
leaves.

Covers: app/repository/saved_state.py.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from build_popef import FEED_LENGTH, add_executable, build_accumulator, build_feed

from engine.programs import executable as ex
from popef_io import (
    Anchor,
    DataType,
    Metadata,
    ProgramFlow,
    TensorInfo,
    TensorType,
    Writer,
)
from tests.app.served import ServedGateway
from tests.engine import models
from tests.support import until

ONES = np.ones((3, 4)).tolist()


def put(root: Path, source: Path, config: str) -> Path:
    """The model in a folder of its own, as version 1."""
    folder = root / source.stem
    (folder / "1").mkdir(parents=True)
    source.rename(folder / "1" / source.name)
    (folder / "config.toml").write_text(config)
    return folder


def build_last(folder: Path) -> Path:
    """A model that answers with the strings of the request before."""
    shape = TensorInfo((3,), DataType.STRING)
    anchors = (
        Anchor("last", "h2d_last", shape, TensorType.INPUT, (0,)),
        Anchor("text", "h2d_text", shape, TensorType.INPUT, (1,)),
        Anchor("before", "d2h_before", shape, TensorType.OUTPUT, (1,)),
        Anchor("last", "d2h_last", shape, TensorType.OUTPUT, (2,)),
    )
    main = (
        ex.StreamIn("h2d_text", "text"),
        ex.StreamOut("last", "d2h_before"),
        ex.Copy("text", "last"),
    )
    executable = ex.Executable(
        {},
        {"last": shape, "text": shape},
        {
            0: ex.StreamIn("h2d_last", "last"),
            1: ex.Steps(main),
            2: ex.StreamOut("last", "d2h_last"),
        },
    )
    flow = ProgramFlow((0,), (1,), (2,))
    path = folder / "last.popef"
    with Writer(path) as writer:
        metadata = Metadata("last", anchors=anchors, program_flow=flow)
        add_executable(writer, metadata, executable)
    return path


def first(gateway: ServedGateway, model: str, output: str, **inputs: object) -> float:
    return float(gateway.infer(model, **inputs)[output][0])


def test_state_is_saved_when_a_model_leaves_and_frozen_when_it_comes(
    tmp_path: Path,
) -> None:
    root = tmp_path / "models"
    config = 'save_outputs = "state"\n'
    folder = put(root, build_accumulator(tmp_path), config)
    saved = folder / "state" / "1" / "0" / "total.npy"
    with ServedGateway(root) as gateway:
        gateway.wait_ready()
        for total in (1, 2, 3):  # no warm-up has added anything
            got = first(gateway, "accumulator", "sum", increment=ONES)
            assert got == total
        assert not saved.exists()
        gateway.client.post("/v1/models/accumulator/unload").raise_for_status()
        assert np.array_equal(np.load(saved), np.full((3, 4), 3, np.float32))
        goes_on = config + '[frozen_inputs]\ntotal = "state/1/0/total.npy"\n'
        (folder / "config.toml").write_text(goes_on)
        gateway.client.post("/v1/models/accumulator/load").raise_for_status()
        assert first(gateway, "accumulator", "sum", increment=ONES) == 4
        # A load request may not say where files are written.
        override = {"parameters": {"config": '{"save_outputs": "/tmp"}'}}
        response = gateway.client.post(
            "/v2/repository/models/accumulator/load", json=override
        )
        assert response.status_code == 400
        assert "model repository" in response.text
        gateway.client.close()
        assert gateway.stop() == 0
    assert np.array_equal(np.load(saved), np.full((3, 4), 4, np.float32))
    assert sorted(p.name for p in saved.parent.iterdir()) == ["total.npy"]


def test_a_model_without_save_programs_saves_no_state(tmp_path: Path) -> None:
    put(tmp_path / "models", models.affine(tmp_path / "m.popef"), 'save_outputs = "s"')
    with ServedGateway(tmp_path / "models") as gateway:
        gateway.wait_ready()
        gateway.client.post("/v1/models/m/unload").raise_for_status()
        until(lambda: "model m is unloaded" in gateway.output, gateway)
        assert "saved the state" not in gateway.output


def test_frozen_inputs_feeds_and_replicas(tmp_path: Path) -> None:
    root = tmp_path / "models"
    frozen = "instances = 3\n[frozen_inputs]\ntensor_B = 10\n"
    folder = put(root, models.simple(tmp_path), frozen)
    np.save(folder / "w.npy", np.arange(4, dtype=np.float32))
    feed = put(root, build_feed(tmp_path), "[warmup]\nenabled = false\n")
    with ServedGateway(root, "--devices", "cpu:2") as gateway:
        gateway.wait_ready()
        spec = gateway.client.get("/v1/models/simple").json()
        assert [tensor["name"] for tensor in spec["inputs"]] == ["tensor_A"]
        assert spec["instances"] == 3
        assert first(gateway, "simple", "output", tensor_A=ONES) == 10.5
        zeros = np.zeros((3, 4)).tolist()
        got = [
            first(gateway, "feed", "output", tensor_A=zeros)
            for _ in range(FEED_LENGTH + 1)
        ]
        assert got == [100.0 * (n % FEED_LENGTH) for n in range(FEED_LENGTH + 1)]
        (folder / "config.toml").write_text(frozen + 'weights = "w.npy"\n')
        gateway.client.post("/v1/models/simple/load").raise_for_status()
        assert first(gateway, "simple", "output", tensor_A=ONES) == 10
        # The file is another: the model is loaded again.
        np.save(folder / "w.npy", np.full(4, 2, np.float32))
        gateway.client.post("/v1/models/simple/load").raise_for_status()
        assert first(gateway, "simple", "output", tensor_A=ONES) == 12
        (feed / "config.toml").write_text("[frozen_inputs]\noffset = 7\n")
        gateway.client.post("/v1/models/feed/load").raise_for_status()
        assert first(gateway, "feed", "output", tensor_A=ONES) == 8


def test_strings_are_the_same_after_a_restart_or_are_not_saved(tmp_path: Path) -> None:
    root = tmp_path / "models"
    config = 'save_outputs = "state"\n[frozen_inputs]\nlast = '
    folder = put(root, build_last(tmp_path), config + '"first.npy"')
    np.save(folder / "first.npy", np.full(3, b""))
    saved = folder / "state" / "1" / "0" / "last.npy"
    strings = ["", "b\0é", "a" * 70_000]
    with ServedGateway(root) as gateway:
        gateway.wait_ready()
        assert list(gateway.infer("last", text=strings)["before"]) == [""] * 3
        assert gateway.stop() == 0
    (folder / "config.toml").write_text(config + '"state/1/0/last.npy"')
    before = saved.read_bytes()
    with ServedGateway(root) as gateway:
        gateway.wait_ready()
        cut = ["", "a\0", "b"]
        assert list(gateway.infer("last", text=cut)["before"]) == strings
        assert gateway.stop() == 0
        assert "cannot save the state of last/1: 'last' has strings" in gateway.output
    assert saved.read_bytes() == before
