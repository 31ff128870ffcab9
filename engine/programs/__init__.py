"""Executables of a device: format, programs, execution.

Runs in the device process, and in processes that compile or read models. May import the
ground.
"""

from engine.programs.executable import (
    Copy,
    Executable,
    Execute,
    Graph,
    Node,
    Repeat,
    Steps,
    StreamIn,
    StreamOut,
    Switch,
)

__all__ = (
    "Copy",
    "Executable",
    "Execute",
    "Graph",
    "Node",
    "Repeat",
    "Steps",
    "StreamIn",
    "StreamOut",
    "Switch",
)
