"""Intermediate form of the lowering: blocks, loops and branches.

A region is a list of steps. A block is nodes that become one ONNX graph, with stream
copies before and after; an assignment sets variables of the executable and only ever
stands right behind a block; loops and branches hold regions of their own.

Each value has one variable, written once where the value is computed; only what an
assignment sets changes: what a loop carries, what a branch results in, the program's
own variables at its end. So a value read later is still what it was.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from popir.builder import Block, Value


@dataclass(eq=False, slots=True)
class Assignment:
    """Variables of the executable that take new values, all at once."""

    pairs: list[tuple[Value, str]]


@dataclass(eq=False, slots=True)
class Loop:
    """A region that runs a fixed number of times."""

    count: int
    body: Region


@dataclass(eq=False, slots=True)
class Branch:
    """Choice of one of two regions, by a value of one element."""

    condition: Value
    then: Region
    otherwise: Region


Step: TypeAlias = Block | Assignment | Loop | Branch


@dataclass(eq=False, slots=True)
class Region:
    """Steps, one after the other."""

    steps: list[Step] = field(default_factory=list)
