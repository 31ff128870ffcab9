"""Proofs, without running a model, that it keeps rows apart and has one number of rows.

Running a model (`row_check`) shows its behaviour for equal numbers
of rows in all inputs. The file may state by a common name that the numbers are equal.
If it does not, a plugin must also prove that the model cannot run with different
numbers. If a single row of one input could be repeated for all rows of another,
requests must run alone.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import Any, Final, Protocol

from popgate_onnx.compiler.interface import GraphTensor, Interface

#: Entry point group of functions that prove. Their results are those of `unproven`.
PROOFS: Final = "popgate.row_proofs"
_NO_PLUGIN = "no installed plugin proves that they are equal"


class Prove(Protocol):
    """An object of the entry point group `popgate.row_proofs`."""

    def __call__(self, model: Any, interface: Interface) -> str | None:
        """Return what `unproven` returns."""


@cache
def _proofs() -> tuple[Prove, ...]:
    return tuple(point.load() for point in entry_points(group=PROOFS))


def unproven(model: Any, interface: Interface) -> str | None:
    """Return why there is no proof that rows stay apart and all inputs have equally
    many rows.

    The result is a clause; None if there is a proof. `model` may lack the data of
    weights. All inputs must have a free first dimension.
    """
    why = _NO_PLUGIN
    for prove in _proofs():
        found = prove(model, interface)
        if found is None:
            return None
        why = found
    return why


def wrongly_fixed(model: Any, interface: Interface) -> list[str]:
    """Return the outputs that have one row for each input row, although the file states
    a fixed number.

    Some converters declare the labels of all rows as a single label.
    """
    named = [t.name for t in interface.outputs if t.shape and _is_fixed(t)]
    free = all(t.shape and not _is_fixed(t) for t in interface.inputs)
    if not named or not free or not interface.inputs:
        return []
    return named if unproven(model, interface) is None else []


def _is_fixed(tensor: GraphTensor) -> bool:
    return bool(tensor.shape) and isinstance((tensor.shape or (0,))[0], int)
