"""Models in Python that several tests serve, and how to write them into a folder."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

COUNT = """
import os, time
import numpy as np

class Count:
    inputs = {"n": "INT32[-1]", "text": "BYTES[-1]"}
    outputs = {"i": "INT32[1]", "word": "BYTES[1]"}

    def load(self, context):
        self.context = context

    def __call__(self, n, text):
        try:
            for i in range(int(n[0])):
                if text[0] == b"raise" and i == 2:
                    raise ValueError("in the middle")
                if text[0] == b"die" and i == 2:
                    os._exit(1)
                while text[0] == b"hang" and not self.context.cancelled:
                    time.sleep(0.001)
                yield {"i": [i], "word": text}
        finally:
            self.context.log.info("closed %s", text[0].decode())
"""
SUM = """
class Sum:
    inputs = {"x": "FP32[1]", "total": "FP32[1]", "id": "UINT64[1]"}
    outputs = {"y": "FP32[1]", "after": "FP32[1]", "of": "UINT64[1]"}
    def __call__(self, x, total, id):
        return {"y": x + total, "after": x + total, "of": id}
"""
SEQUENCE = """
[sequence]
correlation_id = "id"
[[sequence.state]]
input = "total"
output = "after"
"""


def write(root: Path, name: str, text: str, config: str = "") -> None:
    """Write version 1 of a model; without `text` it has its configuration alone."""
    folder = root / name / "1"
    folder.mkdir(parents=True)
    if text:
        (folder / "model.py").write_text(textwrap.dedent(text))
    (root / name / "config.toml").write_text(config)


def values(event: Any) -> list[Any]:
    """Return the first value of each output."""
    return [output["data"][0] for output in event["outputs"]]
