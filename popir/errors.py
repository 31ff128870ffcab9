"""Errors of graphs: what a program did that no graph can mean."""

from __future__ import annotations


class IrError(Exception):
    """The program is wrong: shapes, types, names, or an order that nothing fixes."""


class NotYet(NotImplementedError):
    """A name that exists and does not work yet; its text says what is missing."""
