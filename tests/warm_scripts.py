"""Import what scripts import that tests run: our packages, and those of clients.

`tests.warm` imports this before it forks scripts. Packages that are not installed are
left out.
"""

from __future__ import annotations

import contextlib
import importlib

_IMPORTED = (
    "engine",
    "onnx",
    "onnxruntime",
    "httpx",
    "rich.table",
    "model_runtime",
    "popef",
    "popgate_sessions",
    "popxl",
    "tests.engine.forks",
    "tritonclient.http",
    "tritonclient.utils",
)

for name in _IMPORTED:
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
