"""`popgate models`, `load` and `unload` against a gateway of their own."""

from __future__ import annotations

from pathlib import Path

from tests.app.cli.calls import Call
from tests.app.served import ServedGateway
from tests.engine import models


def test_models_are_listed_loaded_and_unloaded(popgate: Call, tmp_path: Path) -> None:
    root, managed = tmp_path / "models", tmp_path / "manage.sock"
    root.mkdir()
    models.affine(root / "affine.popef")
    (root / "broken.popef").write_bytes(b"nothing of the kind")
    options = ["--management-socket", str(managed)]
    with ServedGateway(root, *options, POPGATE_TRUST_LOOPBACK="") as served:
        served.wait_ready()
        models.affine(root / "later.popef")
        at, local = ("--url", served.url), ("--url", f"unix:{managed}")

        affine, broken = popgate("models", *at).out.splitlines()
        assert affine == "affine    1  ready"
        assert broken.startswith("broken    -  unavailable  ")
        refused = popgate("load", "later", *at)
        assert refused.code == 1
        assert "management" in refused.err

        assert popgate("load", "later", *local).out == "later version 1: ready\n"
        assert popgate("unload", "affine", *local).out == "affine: unavailable\n"
        states = [line.split()[::2] for line in popgate("models", *at).out.splitlines()]
        assert states[0][:2] == ["affine", "unavailable"]
        assert states[2] == ["later", "ready"]
        for name in ("none", "none\udcff"):
            unknown = popgate("load", name, *local)
            assert unknown.code == 1
            assert "failed to load" in unknown.err
