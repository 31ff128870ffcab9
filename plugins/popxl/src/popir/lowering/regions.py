"""Intermediate form of the lowering: blocks, loops and branches.

A region is a list of steps. A block is a set of nodes that becomes one ONNX graph, with
stream copies before and after. An assignment sets variables of the executable and only
follows a block. Loops and branches hold their own regions.

Each value has one variable, written once where the value is computed. Only assignments
change variables: those that a loop carries, the results of a branch, and the program's
own variables at its end. So a value that is read later is unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from popir.builder import Block, Value


@dataclass(eq=False, slots=True)
class Assignment:
    """Variables of the executable that take new values, all at the same time."""

    pairs: list[tuple[Value, str]]


@dataclass(eq=False, slots=True)
class Loop:
    """A region that runs a fixed number of times."""

    count: int
    body: StepRegion


@dataclass(eq=False, slots=True)
class Branch:
    """Choice of one of two regions, by a value of one element."""

    condition: Value
    then: StepRegion
    otherwise: StepRegion


Step: TypeAlias = Block | Assignment | Loop | Branch


@dataclass(eq=False, slots=True)
class StepRegion:
    """Steps, one after the other."""

    steps: list[Step] = field(default_factory=list)
