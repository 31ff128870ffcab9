"""Turns off ONNX Runtime's telemetry.

The official builds record usage in the user's cache folder and send it, but the models
that people run are private. Set ORT_DISABLE_TELEMETRY=0 to allow telemetry. The
variable must be set before the runtime is loaded, so the package imports this module
first. Device processes inherit the variable.
"""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
