"""ONNX Runtime does not report home from here.

Its official builds record usage in the user's cache folder and send it. The models that
people run are private; set ORT_DISABLE_TELEMETRY=0 to allow it. The variable must be
set before the runtime is loaded, so this module is the first that the package imports,
and device processes inherit it.
"""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
