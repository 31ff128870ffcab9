"""Models in Python where no plugin serves their calls to other models."""

from __future__ import annotations

from pathlib import Path

from tests.app.python_sources import write
from tests.app.served import ServedGateway

#: Hides the plugin from the gateway. The process of a test has read the entry points
#: before.
WITHOUT = """
import importlib.metadata as metadata
import app.plugins
found = (p for one in metadata.distributions() for p in one.entry_points)
kept = metadata.EntryPoints(p for p in found if p.group != "popgate.model_calls")
app.plugins._all_points = lambda: kept
app.plugins._points.cache_clear()
app.plugins.plugins.cache_clear()
"""
ALONE = """
class Alone:
    inputs = {"x": "FP32[-1]"}
    outputs = {"y": "FP32[-1]", "why": "BYTES[1]"}
    def load(self, context):
        self.models = context.models
    def __call__(self, x):
        try:
            return {"y": self.models["other"](x=x)["y"], "why": ["called"]}
        except KeyError as error:
            return {"y": x, "why": [str(error)]}
"""


def test_a_model_that_names_others_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "alone", ALONE)
    write(tmp_path, "caller", ALONE, 'models = ["alone"]\n')
    with ServedGateway(tmp_path, "--allow-python", first=WITHOUT) as gateway:
        gateway.wait_line("no plugin that serves such calls is installed")
        gateway.until("/v2/models/alone/ready", 200)
        found = gateway.client.post(
            "/v1/models/alone/infer", json={"inputs": {"x": [1.0]}}
        ).json()
        y, why = (output["data"] for output in found["outputs"])
        assert y == [1.0]
        assert "cannot call model 'other'" in why[0]
        assert gateway.client.get("/metrics").status_code == 200
