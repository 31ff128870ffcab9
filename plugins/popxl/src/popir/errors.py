"""Errors of graphs and of their runs."""

from __future__ import annotations


class IrError(Exception):
    """The program is wrong: shapes, types, names, or an order that is not fixed."""


class NotYet(NotImplementedError):
    """An unsupported feature, which the message names."""


class DeviceError(Exception):
    """An error below the graphs."""


class RunError(DeviceError):
    """The device failed, or was not available, while a program ran."""


class ValueOutOfRange(RunError):
    """A value of the program that its options do not allow."""
