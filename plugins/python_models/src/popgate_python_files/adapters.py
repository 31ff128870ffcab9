"""Adapters for Python models that were written for another server. A package registers
one as an entry point:

    [project.entry-points."popgate.python_models"]
    DemoModel = "demo_server.adapter"

The name is the class name in such files. The value is a module with a function
`adapt(module, declared)`. The function returns the class that PopGate runs, or None if
the imported file has no such class. The owner of a device looks for adapters, because a
Python model's process may have an interpreter without our entry points.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points

from engine.devices.python_options import folder_of
from engine.transport.device_messages import AdapterTold

GROUP = "popgate.python_models"


@dataclass(frozen=True, slots=True)
class PythonAdapter:
    """The module of an adapter, and the folder of its package. Both are empty for files
    that need no adapter.
    """

    module: str = ""
    folder: str = ""

    def to_message(self) -> AdapterTold:
        return AdapterTold(self.module, self.folder)


NO_ADAPTER = PythonAdapter()


def adapter_for(source: bytes) -> PythonAdapter:
    """Return the adapter that a file needs. The file's text contains the class name or
    imports the adapter's package. Raises InvalidConfig if that package is not
    installed.
    """
    for mark, module in _adapters():
        package = module.partition(".")[0]
        if mark.encode() in source or package.encode() in source:
            return PythonAdapter(module, folder_of(package, GROUP))
    return NO_ADAPTER


@cache
def _adapters() -> tuple[tuple[str, str], ...]:
    """Return the class names and the modules of their adapters."""
    return tuple(sorted((e.name, e.value) for e in entry_points(group=GROUP)))
