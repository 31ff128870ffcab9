"""Common part of the handles of one program."""

from __future__ import annotations

from typing import Any, ClassVar
from weakref import WeakValueDictionary

import popir


class Program:
    """The handles of one `popir.Ir`, one for each graph and tensor.

    `Ir` is its only user above graphs and tensors, which find it here.
    """

    _ir_cache: ClassVar[WeakValueDictionary[int, Program]] = WeakValueDictionary()
    _kind: ClassVar[type[Program]]

    def __init_subclass__(cls) -> None:
        Program._kind = cls

    def _begin(self, below: popir.Ir) -> None:
        self._below = below
        self._graphs: dict[popir.IrGraph, Any] = {}
        self._tensors: dict[popir.IrTensor, Any] = {}
        Program._ir_cache[below.number] = self

    @staticmethod
    def _of(below: popir.Ir) -> Program:
        found = Program._ir_cache.get(below.number)
        if found is None:
            found = Program._kind.__new__(Program._kind)
            found._begin(below)
        return found
