"""Import what the server imports of the plugins that are installed.

`tests.warm` imports this before it forks servers. A process whose environment has other
plugins is started from nothing.
"""

from __future__ import annotations

import contextlib
import importlib

from app import plugins

#: The groups of which every server imports all plugins.
_IMPORTED = (
    plugins.COMPILERS,
    plugins.CONFIG_FORMATS,
    plugins.ENSEMBLES,
    plugins.INPUT_DECODERS,
    plugins.MODEL_CALLS,
    plugins.MODEL_FORMATS,
    plugins.PROCESSES,
    plugins.PYTHON_FILES,
    plugins.PROFILES,
    plugins.REGIONS,
    plugins.ROUTES,
    plugins.SPANS,
    plugins.STATEFUL_MODELS,
    plugins.TRACERS,
)

for group in _IMPORTED:
    for point in plugins._points(group).values():
        with contextlib.suppress(ImportError):  # the server logs that
            importlib.import_module(point.module)
